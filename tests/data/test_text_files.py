import gzip
import os
import threading
from pathlib import Path

import pytest

from attn_jax.data.sources import open_source
from attn_jax.errors import InputError, WorkError

LINES = [f"line {i}" for i in range(100)]


@pytest.fixture
def text(make_config, write):
    """Returns a function that opens `text_files` on given training lines."""

    def opened(content=LINES, **fields):
        path = write("train.txt", content)
        return open_source(make_config(name="text_files", train_files=path, **fields).data)

    return opened


@pytest.fixture
def parallel(make_config, write):
    """Returns a function that opens `parallel_files` on given sides."""

    def opened(source, target, **fields):
        files = f"{write('a.en', source)},{write('a.de', target)}"
        return open_source(make_config(name="parallel_files", train_files=files, **fields).data)

    return opened


def documents(source, split="train"):
    return list(source.split(split))


def test_lines_are_documents_and_every_50th_is_held_out(text):
    source = text()
    assert source.kind == "text"
    assert documents(source, "validation") == ["line 49", "line 99"]
    assert documents(source, "test") == ["line 48", "line 98"]
    train = documents(source)
    assert train == [line for i, line in enumerate(LINES) if i % 50 not in (48, 49)]
    assert source.split("train")[-1] == train[-1] == "line 97"
    with pytest.raises(IndexError):
        source.split("train")[96]


def test_files_for_a_split_leave_the_training_lines_alone(text, write):
    valid, test = write("v.txt", ["v 1", "v 2"]), write("t.txt", ["t"])
    source = text(validation_files=valid, test_files=test)
    assert documents(source) == LINES
    assert documents(source, "validation") == ["v 1", "v 2"]
    assert documents(source, "test") == ["t"]


def test_only_the_missing_split_is_held_out(text, write):
    source = text(validation_files=write("v.txt", ["v"]))
    assert documents(source, "test") == ["line 48", "line 98"]
    assert len(documents(source)) == 98


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfone\r\n\r\n  \r\ntwo\xc3\xa9\r\nthree",
        b"one\rtwo\xc3\xa9\rthree\r",
        gzip.compress("one\n\ntwoé\nthree".encode(), mtime=0),
    ],
)
def test_line_ends_marks_and_compression_make_no_difference(make_config, write, content):
    name = "a.gz" if content[:2] == b"\x1f\x8b" else "a.txt"
    files = {"train_files": write(name, content), "validation_files": write("v.txt", ["v"])}
    source = open_source(make_config(name="text_files", **files).data)
    assert documents(source) == ["one", "twoé", "three"]


def test_paragraphs_are_documents(text, write):
    content = b"a\nb\n\n\nc\n \t\n  d\ne"
    source = text(content, document="paragraph", validation_files=write("v.txt", ["v"]))
    assert documents(source) == ["a\nb", "c", "  d\ne"]


def test_files_are_documents_whose_ends_are_held_out(make_config, write):
    a, b = "a" * 180 + "v" * 10 + "t" * 10, "b" * 90 + "V" * 5 + "T" * 5
    files = f"{write('a', a.encode())}, {write('b', b.encode())}"
    source = open_source(make_config(name="text_files", train_files=files, document="file").data)
    assert documents(source) == ["a" * 180, "b" * 90]
    assert documents(source, "validation") == ["v" * 10, "V" * 5]
    assert documents(source, "test") == ["t" * 10, "T" * 5]


def test_an_edited_file_is_prepared_again(text):
    before = text()
    again = text()
    after = text(["other", *LINES[1:]])
    assert documents(after)[0] == "other"
    assert documents(before)[0] == "line 0"
    assert before.fingerprint == again.fingerprint != after.fingerprint


def test_what_a_document_is_changes_the_fingerprint(text, write):
    valid = write("v.txt", ["v"])
    kinds = ("line", "paragraph", "file")
    assert len({text(document=kind, validation_files=valid).fingerprint for kind in kinds}) == 3


def test_a_killed_preparation_does_not_poison_the_next(text):
    directory = Path(text().builder.data_path)
    whole = sorted(p.name for p in directory.iterdir())
    (directory / "dataset_info.json").unlink()
    half = directory.with_name(f"{directory.name}.incompleteABCDEF")
    half.mkdir()
    (half / "text_files-train.array_record").write_text("junk")
    assert len(documents(text())) == 96
    assert sorted(p.name for p in directory.iterdir()) == whole


def test_a_failure_while_preparing_leaves_nothing_that_looks_whole(text, monkeypatch):
    class Full:
        def __iter__(self):
            yield "one"
            raise OSError("no space left on device")

    from attn_jax.data.sources.text_files import TextFiles

    with monkeypatch.context() as patch:
        patch.setattr(TextFiles, "records", lambda _: {"train": Full(), "validation": Full()})
        with pytest.raises(WorkError, match=r"text_files.*nothing was kept.*no space left"):
            text()
    assert len(documents(text())) == 96


def test_another_process_that_was_faster_wins(text, monkeypatch):
    from attn_jax.data.sources.text_files import TextFiles

    usual = TextFiles.records

    def late(self):
        monkeypatch.setattr(TextFiles, "records", usual)
        text()  # the other process
        return usual(self)

    monkeypatch.setattr(TextFiles, "records", late)
    assert len(documents(text())) == 96


def test_others_wait_for_the_one_that_prepares(text, monkeypatch):
    from attn_jax.data.sources.text_files import TextFiles

    usual, prepared, found = TextFiles._split_generators, [], []
    other = threading.Thread(target=lambda: found.append(documents(text())))

    def slow(self, *args):
        prepared.append(self)
        if len(prepared) == 1:
            other.start()
            other.join(timeout=0.5)
            assert other.is_alive()
        return usual(self, *args)

    monkeypatch.setattr(TextFiles, "_split_generators", slow)
    first = documents(text())
    other.join(timeout=60)
    assert found == [first]
    assert len(prepared) == 1


def test_pairs_are_aligned_and_those_with_an_empty_side_skipped(parallel):
    source = [f"s {i}" for i in range(100)]
    target = [f"t {i}" for i in range(100)]
    source[3], target[7] = "", "   "
    data = parallel(source, target)
    assert data.kind == "pair"
    train = documents(data)
    assert train[:4] == [("s 0", "t 0"), ("s 1", "t 1"), ("s 2", "t 2"), ("s 4", "t 4")]
    assert len(train) + len(documents(data, "validation")) + len(documents(data, "test")) == 98
    assert all(a[2:] == b[2:] for a, b in train)


def test_pairs_keep_their_lines_where_the_last_one_is_empty(parallel, write):
    valid = f"{write('v.en', ['v'])},{write('v.de', ['w'])}"
    data = parallel(b"a\nb\n\n", b"c\nd\ne\n", validation_files=valid)
    assert documents(data) == [("a", "c"), ("b", "d")]


BAD_TEXT = {
    "missing": (None, r"data\.train_files: .*train\.txt: no such file"),
    "empty": (b"", r"train\.txt: the file is empty"),
    "blank": (b" \n\n", r"train\.txt: the file is empty"),
    "not UTF-8": (b"fine\nfine\nb\xffd\n", r"train\.txt: line 3: not UTF-8"),
    "too few": (b"a\nb\n", r"data\.validation_files: no records for validation"),
}


@pytest.mark.parametrize("kind", BAD_TEXT)
def test_bad_files_are_named_in_one_line(make_config, write, tmp_path, kind):
    content, message = BAD_TEXT[kind]
    path = tmp_path / "train.txt" if content is None else write("train.txt", content)
    config = make_config(name="text_files", train_files=str(path))
    with pytest.raises(InputError, match=message) as caught:
        open_source(config.data)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "tfds").exists()  # nothing half-written


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda _: b"no gzip at all", lambda d: d[:12] + d[13:]]
)
def test_damaged_compression(make_config, write, damage):
    path = write("a.gz", damage(gzip.compress(os.urandom(1000).hex().encode())))
    with pytest.raises(InputError, match=r"a\.gz: damaged \.gz file"):
        open_source(make_config(name="text_files", train_files=path).data)


@pytest.mark.parametrize("field", ["train_files", "validation_files", "test_files"])
def test_a_directory_is_no_file(make_config, write, tmp_path, field):
    files = {"train_files": write("a.txt", LINES)} | {field: str(tmp_path)}
    with pytest.raises(InputError, match=rf"data\.{field}: .*is a directory"):
        open_source(make_config(name="text_files", **files).data)


@pytest.mark.parametrize("name", ["text_files", "parallel_files"])
def test_no_files_given(make_config, name):
    with pytest.raises(InputError, match=r"data\.train_files is empty"):
        open_source(make_config(name=name).data)


def test_sides_of_different_length(parallel):
    with pytest.raises(InputError, match=r"a\.en has 3 lines and .*a\.de has 2"):
        parallel(["a", "b", "c"], ["a", "b"])


def test_a_pair_takes_two_paths(make_config, write):
    one = write("a", LINES)
    for files, count in ((one, 1), (f"{one},{one},{one}", 3)):
        with pytest.raises(InputError, match=rf"data\.train_files: {count} paths, expected 2"):
            open_source(make_config(name="parallel_files", train_files=files).data)


def test_a_test_split_that_is_not_there(text, write):
    source = text(["a", "b"], validation_files=write("v.txt", ["v"]))
    assert documents(source) == ["a", "b"]
    with pytest.raises(InputError, match=r"eval\.split = 'test'"):
        source.split("test")
