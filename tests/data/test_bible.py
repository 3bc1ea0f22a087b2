import pytest

from attn_jax.config import DataConfig
from attn_jax.data.sources import SPLITS, open_source


@pytest.fixture(scope="module")
def chapters(shared_dir):
    return open_source(DataConfig(name="web_bible", data_dir=shared_dir))


@pytest.fixture(scope="module")
def verses(shared_dir):
    return open_source(DataConfig(name="kjv_web", data_dir=shared_dir))


def test_chapters_are_documents(chapters):
    assert chapters.kind == "text"
    first = chapters.split("train")[0]
    assert first.startswith(
        "In the beginning God created the heavens and the earth. Now the earth was formless and "
        "empty. Darkness was on the surface of the deep. God's Spirit was hovering"
    )
    sizes = {name: len(chapters.split(name)) for name in SPLITS}
    assert sum(sizes.values()) == 1189  # of the 66 books that both versions have
    assert sizes["train"] > 1050
    assert min(sizes.values()) > 40


def test_every_verse_is_a_pair(verses):
    assert verses.kind == "pair"
    assert sum(len(verses.split(name)) for name in SPLITS) == 31_099
    assert verses.split("train")[0] == (
        "In the beginning God created the heaven and the earth.",
        "In the beginning God created the heavens and the earth.",
    )


def test_marks_are_cleaned(verses):
    pairs = [pair for name in ("validation", "test") for pair in verses.split(name)]
    text = "".join(map("".join, pairs))
    assert not set("[]`’") & set(text)
    assert "'" in text


def test_verses_are_split_as_their_chapters_are(chapters, verses):
    for split in ("validation", "test"):
        documents = " ".join(chapters.split(split))
        assert documents == " ".join(target for _, target in verses.split(split))
    train = "".join(chapters.split("train"))
    assert not any(target in train for _, target in list(verses.split("test"))[:20])
