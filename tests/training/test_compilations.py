"""One compiled step: after a warm-up nothing is compiled any more, whatever the loop does."""

import pytest
from tiny_runs import TRANSLATION

from attn_jax.training import loop

WARM_UP = 13  # steps, after which there was a log, an evaluation and a checkpoint, each twice
STEPS = WARM_UP + 50


@pytest.mark.slow
def test_nothing_is_compiled_after_a_warm_up(compilations, monkeypatch, tiny_data, tmp_path):
    """Batches of pairs, whose lengths differ most."""
    counts, read = [], loop.read_tokens

    def read_and_count(text):
        counts.append(len(compilations))
        return read(text)

    monkeypatch.setattr(loop, "read_tokens", read_and_count)
    changes = {"train.steps": STEPS, "eval.evaluators": "loss", "data.batch_tokens": 48}
    loop.train(tiny_data.config(**TRANSLATION | changes), tmp_path / "run")
    assert counts[WARM_UP] > counts[0]
    assert counts[STEPS - 1] == counts[WARM_UP]
