"""Two programs in turn, and the ratio of their speeds, by hand."""

import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from attn_jax.errors import InputError, WorkError
from benchmarks import rounds


def speeds(*pairs):
    return [tuple({"tokens_per_s": value} for value in pair) for pair in pairs]


def test_the_ratio_by_hand():
    """Medians 30 and 20; the rounds themselves have 10 / 20, 30 / 10 and 40 / 25."""
    row = rounds.compare(speeds((10, 20), (30, 10), (40, 25)))
    assert row == {
        "ours_tokens_per_s": 30,
        "peer_tokens_per_s": 20,
        "ratio": 1.5,
        "ratio_low": 0.5,
        "ratio_high": 3.0,
        "rounds": 3,
    }


def test_the_table_has_a_row_for_each():
    rows = [{"name": name} | rounds.compare(speeds((1500, 1000))) for name in ("one", "two")]
    lines = rounds.table(rows).splitlines()
    assert len(lines) == 4
    assert lines[-1] == "| two | 1,500 | 1,000 | 1.50 | 1.50 to 1.50 |"


@pytest.fixture
def turns(tmp_path):
    """Runs two programs that write down when they ran and what they were given."""
    log = tmp_path / "log"

    def program(name, parameters):
        said = f'{{"tokens_per_s": 5, "parameters": {parameters}}}'
        variables = "os.environ['GLIBC_TUNABLES'], os.environ['OMP_NUM_THREADS']"
        code = f"import os; print('{name}', {variables}, file=open({str(log)!r}, 'a'))"
        return ["-c", f"{code}; print('progress'); print('{said}')"]

    def run(ours=7, peer=7):
        flags.FLAGS.mark_as_parsed()
        with flagsaver.flagsaver(rounds=2, malloc="x=1", peer_python=sys.executable):
            pairs = rounds.run_in_turn("test", program("A", ours), program("B", peer), threads=2)
        return pairs, log.read_text().splitlines()

    return run


def test_both_run_in_turn_with_the_same_settings(turns):
    pairs, log = turns()
    assert log == ["A x=1 2", "B x=1 2"] * 2
    assert pairs == [({"tokens_per_s": 5, "parameters": 7},) * 2] * 2


def test_models_of_different_sizes_are_no_comparison(turns):
    with pytest.raises(WorkError, match="7 and 8 parameters"):
        turns(peer=8)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("import sys; sys.exit('error: no module here')", InputError, "no module here"),
        ("raise RuntimeError('lost')", WorkError, "RuntimeError: lost"),
    ],
)
def test_a_failure_is_passed_on_in_one_line(code, error, said):
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(rounds=1), pytest.raises(error) as raised:
        rounds.run_in_turn("test", ["-c", code], ["-c", code], threads=1)
    assert str(raised.value) == said
