import base64
import itertools
from dataclasses import astuple

import numpy as np
import pytest
import sentencepiece

from attn_jax.config import TokenizerConfig
from attn_jax.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    WhitespaceTokenizer,
    load_tokenizer,
    train_tokenizer,
)
from attn_jax.errors import InputError

TEXTS = [
    "In the beginning God created the heavens and the earth.",
    "  two spaces, a tab\tand a line\nend \n",
    "Überall 12345 größere Zahlen: 67,890.5 € – „ja“ e\u0301 ﬁ",
    "a literal <mask>, <unk> and <pad> 漢字かな",
    "",
] + [
    f"the {a} and the {b} of {a}s and {b}s"
    for a in ("day", "night", "sea", "island", "mountain", "river", "firmament", "creature")
    for b in ("land", "sky", "evening", "morning", "waters", "herb", "season", "light")
]
KINDS = ("sentencepiece", "byte", "char", "whitespace")


@pytest.fixture(scope="module")
def trained():
    return {kind: train_tokenizer(TokenizerConfig(kind, 100), TEXTS) for kind in KINDS}


@pytest.mark.parametrize("kind", ["sentencepiece", "byte", "char"])
def test_text_of_known_characters_comes_back_as_it_was(trained, kind):
    tokenizer = trained[kind]
    for text in (*TEXTS, "  ", "\n\n", " deep <pad>  sky", "12 the"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_distinct_and_never_come_from_text(trained, kind):
    tokenizer = trained[kind]
    special = astuple(tokenizer.specials)
    assert len(set(special)) == 6
    assert all(0 <= i < tokenizer.vocab_size for i in special)
    ids = tokenizer.encode("<mask> the <pad> ⟨mask⟩ <bos></s> sea")
    assert set(ids) & set(special) <= {tokenizer.specials.unk}


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_has_a_name_of_its_own(trained, kind):
    names = trained[kind].names()
    assert len(set(names)) == len(names) == trained[kind].vocab_size


def test_names_of_tokens_that_a_text_spells_like_special_ones():
    tokenizer = WhitespaceTokenizer(["<eos>", "<<eos>>", "a"])
    names = tokenizer.names()
    assert names[tokenizer.specials.eos] == "<<<eos>>>"
    assert names[tokenizer.specials.bos] == "<bos>"
    assert names[6:] == ["<eos>", "<<eos>>", "a"]


def test_sentencepiece_names_are_those_of_its_own_pieces(trained):
    tokenizer = trained["sentencepiece"]
    names = tokenizer.names()
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=base64.b64decode(tokenizer.state()["model"])
    )
    for text in TEXTS[:3]:
        pieces = processor.encode(text, out_type=str)
        assert [names[i] for i in tokenizer.encode(text)] == pieces


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_dropped_from_text(trained, kind):
    tokenizer = trained[kind]
    s = tokenizer.specials
    ids = tokenizer.encode("the sea")
    assert tokenizer.decode([s.bos, *ids, s.mask, s.sep, s.eos, s.pad]) == "the sea"
    assert tokenizer.decode(np.array([s.pad, s.unk])) == "⁇"
    assert tokenizer.piece(s.mask) == "<mask>"


@pytest.mark.parametrize("kind", ["char", "whitespace", "sentencepiece"])
def test_what_was_never_seen_is_unknown(trained, kind):
    tokenizer = trained[kind]
    ids = tokenizer.encode("щ")
    assert ids[-1] == tokenizer.specials.unk
    assert tokenizer.decode(ids) == "⁇"


@pytest.mark.parametrize("kind", ["sentencepiece", "byte", "char"])
def test_words_start_after_spaces(trained, kind):
    tokenizer, text = trained[kind], "the island größere sea"
    ids = tokenizer.encode(text)
    starts = tokenizer.word_starts(ids)
    bounds = [i for i, start in enumerate(starts) if start] + [len(ids)]
    words = [tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise(bounds)]
    assert [word.strip() for word in words] == text.split()
    assert len(ids) > len(words)
    assert tokenizer.word_starts([]) == []


def test_a_space_belongs_to_the_word_after_it_and_the_first_token_always_begins_one(trained):
    for kind in ("byte", "char"):
        tokenizer = trained[kind]
        found = tokenizer.word_starts(tokenizer.encode(" a  b"))
        assert found == [True, False, True, True, False]


def test_a_piece_goes_on_after_its_mark():
    tokenizer = WhitespaceTokenizer(["wort@@", "teil", "und"])
    ids = tokenizer.encode("wort@@ wort@@ teil und ? und")
    assert tokenizer.word_starts(ids) == [True, False, False, True, True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_token_bytes_sum_to_the_bytes_of_the_text(trained, kind):
    tokenizer = trained[kind]
    sizes = tokenizer.token_bytes()
    assert sizes.dtype == np.int32
    assert sizes.shape == (tokenizer.vocab_size,)
    assert not sizes[list(astuple(tokenizer.specials))].any()
    text = "the größere sea" if kind != "whitespace" else "the day and the night"
    # Sentencepiece puts a space before a text, and the words of a line have one each.
    extra = 1 if kind in ("sentencepiece", "whitespace") else 0
    if kind == "sentencepiece":
        text = "the sea and the land"
    assert sizes[tokenizer.encode(text)].sum() == len(text.encode()) + extra


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same(trained, kind, tmp_path):
    tokenizer = trained[kind]
    tokenizer.save(tmp_path / "new")
    loaded = load_tokenizer(tmp_path / "new")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode(TEXTS[2]) == tokenizer.encode(TEXTS[2])
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["tokenizer.json"]


def test_an_interrupted_save_leaves_the_old_file(trained, tmp_path, monkeypatch):
    trained["char"].save(tmp_path)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        trained["byte"].save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == trained["char"].fingerprint


@pytest.mark.parametrize("content", [None, "{}", "nonsense", '{"name": "sentencepiece"}', "[]"])
def test_a_missing_or_damaged_file_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_fingerprints_tell_tokenizers_apart(trained):
    other = train_tokenizer(TokenizerConfig("sentencepiece", 98), TEXTS)
    again = train_tokenizer(TokenizerConfig("sentencepiece", 100), TEXTS)
    assert again.fingerprint == trained["sentencepiece"].fingerprint
    assert len({other.fingerprint, *(t.fingerprint for t in trained.values())}) == 5


def test_vocab_size_is_kept(trained):
    assert trained["sentencepiece"].vocab_size == 100
    assert train_tokenizer(TokenizerConfig("whitespace", 12), TEXTS).vocab_size == 12


@pytest.mark.parametrize("kind", KINDS)
def test_sentinels_are_the_last_ids_and_stand_for_no_text(trained, kind, tmp_path):
    tokenizer = train_tokenizer(TokenizerConfig(kind, 103, sentinels=3), TEXTS)
    plain = trained[kind]
    assert tokenizer.vocab_size == plain.vocab_size + 3
    assert tokenizer.vocabulary.sentinels == tuple(range(plain.vocab_size, plain.vocab_size + 3))
    ids = plain.encode(TEXTS[0])
    assert tokenizer.encode(TEXTS[0]) == ids
    last = plain.vocab_size + 2
    assert tokenizer.decode([*ids, last]) == plain.decode(ids)
    assert tokenizer.piece(last) == "<sentinel_2>"
    assert tokenizer.token_bytes().tolist() == [*plain.token_bytes(), 0, 0, 0]
    assert set(tokenizer.vocabulary.special) == {
        *astuple(plain.specials),
        *range(last - 2, last + 1),
    }
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).vocabulary == tokenizer.vocabulary
    assert tokenizer.fingerprint != plain.fingerprint
    assert plain.vocabulary.sentinels == ()
    assert "sentinels" not in plain._json()  # and so the fingerprints of old files


def test_limits_of_a_vocabulary_count_the_sentinels():
    with pytest.raises(InputError) as caught:
        train_tokenizer(TokenizerConfig("sentencepiece", 5000), TEXTS)
    limit = int(str(caught.value).split()[-1])
    with pytest.raises(InputError, match=f"at most {limit + 30}$"):
        train_tokenizer(TokenizerConfig("sentencepiece", 5000, sentinels=30), TEXTS)


def words_by_edges(tokenizer, text):
    """The words of a text, each as its tokens' pieces."""
    starts, ends = tokenizer.vocabulary.word_edges
    words = []
    ids = tokenizer.encode(text)
    for before, token in zip([None, *ids], ids, strict=False):
        if before is None or (starts[token] and ends[before]):
            words.append([])
        words[-1].append(tokenizer.piece(token))
    return words


@pytest.mark.parametrize("kind", ["sentencepiece", "byte", "char"])
def test_words_begin_at_spaces(trained, kind):
    words = words_by_edges(trained[kind], "the sea and the land")
    assert ["".join(word).strip() for word in words] == ["the", "sea", "and", "the", "land"]
    assert max(map(len, words)) > 1
    assert all(word[0].startswith(" ") for word in words[1:])


@pytest.mark.parametrize("kind", ["sentencepiece", "char"])
def test_an_unknown_letter_is_in_its_word(trained, kind):
    words = words_by_edges(trained[kind], "the isΩland sea")
    assert ["".join(word).strip() for word in words] == ["the", "is<unk>land", "sea"]


def test_pieces_of_byte_pairs_are_one_word():
    tokenizer = WhitespaceTokenizer.train(["un@@ believ@@ able news able un@@"], vocab_size=20)
    words = words_by_edges(tokenizer, "un@@ believ@@ able news able un@@ news")
    assert words == [["un@@", "believ@@", "able"], ["news"], ["able"], ["un@@", "news"]]
    # Only the tokens before tell whether "able" begins a word.
    specials = astuple(tokenizer.specials)
    assert all(edges[list(specials)].all() for edges in tokenizer.vocabulary.word_edges)


@pytest.mark.parametrize(("size", "message"), [(5000, "at most"), (20, "at least")])
def test_a_vocabulary_that_the_text_does_not_allow(size, message):
    with pytest.raises(InputError, match=rf"tokenizer\.vocab_size = {size}: .*{message} \d+$"):
        train_tokenizer(TokenizerConfig("sentencepiece", size), TEXTS)


def test_no_text_to_train_on():
    with pytest.raises(InputError, match="cannot be trained"):
        train_tokenizer(TokenizerConfig("sentencepiece", 100), [])


@pytest.mark.parametrize(("split", "size"), [(True, 32), (False, 40)])
def test_digits_are_split_if_asked(split, size):
    seasons = [(a, b) for a in ("spring", "summer", "autumn") for b in ("rain", "sun")]
    texts = [f"{a} {year} {b}" for year in range(1900, 2000) for a, b in seasons]
    tokenizer = train_tokenizer(TokenizerConfig("sentencepiece", size, split), texts)
    pieces = [tokenizer.piece(i).strip() for i in tokenizer.encode("1952")]
    assert "".join(pieces) == "1952"
    assert (max(map(len, pieces)) == 1) is split


def test_a_document_longer_than_a_sentence_may_be_is_learned_from():
    long = " ".join(["wonderful"] * 2000)
    tokenizer = train_tokenizer(TokenizerConfig("sentencepiece", 20), [long, "xyz"])
    assert tokenizer.encode("wonderful") == tokenizer.encode_batch(["wonderful"])[0]
    assert len(tokenizer.encode("wonderful")) < 9


def test_words_are_ranked_by_frequency_then_spelling():
    tokenizer = WhitespaceTokenizer.train(["b a c a", "d c"], vocab_size=9)
    assert [tokenizer.piece(i) for i in range(6, 9)] == ["a", "c", "b"]
    assert tokenizer.encode("a d b") == [6, tokenizer.specials.unk, 8]


def test_byte_pair_marks_are_joined():
    tokenizer = WhitespaceTokenizer.train(["un@@ believ@@ able news un@@"], vocab_size=20)
    assert tokenizer.decode(tokenizer.encode("un@@ believ@@ able news")) == "unbelievable news"
    assert tokenizer.decode(tokenizer.encode("news un@@")) == "news un"
    ids = tokenizer.encode("un@@ believ@@ able news")
    assert tokenizer.token_bytes()[ids].tolist() == [2, 6, 5, 5]


def test_bytes_are_ids_and_padding_is_not_zero():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é\0") == [0xC3, 0xA9, 0]
    assert tokenizer.specials.pad == 256
    assert tokenizer.piece(0) == "<0x00>"
    assert tokenizer.decode([0xC3]) == "\ufffd"  # half a character


def test_characters_are_those_of_the_text():
    tokenizer = CharTokenizer.train(["banana"])
    assert [tokenizer.piece(i) for i in range(6, tokenizer.vocab_size)] == ["a", "b", "n"]


def test_of_long_texts_a_sample_of_both_languages_is_used(monkeypatch):
    cats = [f"the {a} and the {b}" for a, b in itertools.permutations(("cat", "hen", "sow"), 2)]
    texts = [text for cat in cats * 20 for text in (cat, cat.upper())] + ["x"]
    monkeypatch.setattr(
        "attn_jax.data.sentencepiece_training._MOST_CHARACTERS", sum(map(len, texts)) // 2
    )
    tokenizer = train_tokenizer(TokenizerConfig("sentencepiece", 34), texts)
    for text in (cats[0], cats[0].upper()):
        assert len(tokenizer.encode(text)) < len(text)
    assert tokenizer.decode(tokenizer.encode("x")) == "x"  # known though maybe not in the sample
