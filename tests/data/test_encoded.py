import subprocess
import sys

import numpy as np
import pytest

from attn_jax.data.cache import cached
from attn_jax.data.encoded import encode_split
from attn_jax.data.tokenizers import ByteTokenizer, CharTokenizer

TEXTS = ["one", "", "three more", "é"]


def test_ids_are_those_of_each_text(tmp_path):
    tokenizer = ByteTokenizer()
    (column,) = encode_split(TEXTS, tokenizer, tmp_path / "a")
    assert [column.ids(i).tolist() for i in range(len(column))] == list(
        map(tokenizer.encode, TEXTS)
    )
    assert column.lengths.tolist() == [3, 0, 10, 2]
    assert column.flat.dtype == np.uint16
    assert column.ids(0).dtype == np.int32


def test_both_sides_of_pairs(tmp_path):
    pairs = [("ab", "c"), ("", "def")]
    source, target = encode_split(pairs, ByteTokenizer(), tmp_path / "a")
    assert source.lengths.tolist() == [2, 0]
    assert bytes(target.ids(1).tolist()) == b"def"


def test_more_than_one_batch(tmp_path):
    texts = [str(i) for i in range(2500)]
    (column,) = encode_split(texts, ByteTokenizer(), tmp_path / "a")
    assert [bytes(column.ids(i).tolist()).decode() for i in range(2500)] == texts


def test_a_large_vocabulary_keeps_its_ids(tmp_path):
    tokenizer = CharTokenizer([chr(i) for i in range(0x100, 0x100 + 70_000)])
    (column,) = encode_split([chr(0x100 + 69_999)], tokenizer, tmp_path / "a")
    assert column.ids(0).tolist() == [70_005]


def test_no_records(tmp_path):
    (column,) = encode_split([], ByteTokenizer(), tmp_path / "a")
    assert len(column) == 0
    assert column.flat.size == 0


def test_texts_are_read_once(tmp_path):
    encode_split(TEXTS, ByteTokenizer(), tmp_path / "a")
    (column,) = encode_split(["other"], ByteTokenizer(), tmp_path / "a")
    assert len(column) == 4
    assert isinstance(column.flat, np.memmap)


def test_a_failed_build_leaves_nothing(tmp_path):
    def fail(directory):
        (directory / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path / "a", fail)
    assert list(tmp_path.iterdir()) == []
    assert cached(tmp_path / "a", lambda d: (d / "whole").write_text("x")).exists()


def test_a_killed_build_is_made_anew(tmp_path):
    code = (
        "import os, pathlib, sys; from attn_jax.data.cache import cached\n"
        "cached(pathlib.Path(sys.argv[1]), "
        "lambda d: ((d / 'half').write_text('x'), os.kill(os.getpid(), 9)))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    assert result.returncode == -9
    assert not (tmp_path / "a").exists()
    (column,) = encode_split(TEXTS, ByteTokenizer(), tmp_path / "a")
    assert len(column) == 4


def test_of_two_builds_at_once_one_wins(tmp_path):
    def slower(directory):
        cached(tmp_path / "a", lambda d: (d / "winner").write_text("first"))
        (directory / "winner").write_text("second")

    assert (cached(tmp_path / "a", slower) / "winner").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_real_failure_is_raised(tmp_path):
    with pytest.raises(OSError, match="disk full"):
        cached(tmp_path / "a", lambda _: (_ for _ in ()).throw(OSError("disk full")))
