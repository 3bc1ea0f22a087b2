"""A run that starts from another run's parameters: only these are taken, once."""

import itertools
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from tiny_runs import LM, contents, read_lines, same_tree, saved_state

from attn_jax.comparison.arms import Study, plan
from attn_jax.config import Config, ModelConfig, with_fields
from attn_jax.errors import InputError, WorkError
from attn_jax.files import read_json
from attn_jax.models.transformer import build_model
from attn_jax.training import loop
from attn_jax.training.initial import read_start
from attn_jax.training.loop import train
from attn_jax.training.restore import restore_run
from attn_jax.training.state import split_model

STEPS = 6
OTHER = LM | {
    "objective.name": "masked_next_token",
    "model.architecture": "encoder",
    "train.steps": STEPS,
    "train.eval_every": 0,
    "train.log_every": 1,
    "train.checkpoint_every": 100,
    "eval.evaluators": "loss",
}


@pytest.fixture(scope="module")
def source(lm_run, tmp_path_factory):
    """The finished run of a decoder, at a place that changes."""
    place = tmp_path_factory.mktemp("source") / "decoder-0"
    shutil.copytree(lm_run, place)
    return place


@pytest.fixture(scope="module")
def config(tiny_data, source):
    return tiny_data.config(**OTHER | {"train.init_from": str(source)})


@pytest.fixture(scope="module")
def encoder_run(config, tmp_path_factory):
    """A finished run of an encoder that went on from the decoder, and its first state."""
    workdir = tmp_path_factory.mktemp("encoder") / "run"
    first = []

    def new_state(*args):
        first.append(make(*args))
        return jax.tree.map(np.array, first[0])

    make = loop.new_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "new_state", new_state)
        train(config, workdir)
    return workdir, jax.tree.map(np.asarray, first[0])


@pytest.mark.slow
def test_the_parameters_are_kept_and_everything_else_begins_anew(encoder_run, source):
    workdir, first = encoder_run
    assert same_tree(first.params, jax.tree.map(np.asarray, restore_run(source).params))
    assert first.step == 0
    # Nothing of the old optimizer: its moments, and its count, are zeros.
    assert not any(x.any() for x in jax.tree.leaves(first.opt_state))
    rates = [line["learning_rate"] for line in read_lines(workdir) if line["split"] == "train"]
    assert rates[:2] == pytest.approx([0.01, 0.02])  # the warm-up of two steps, again
    assert rates[-1] == pytest.approx(0.02 * 0.02)
    after = restore_run(workdir)
    assert after.step == STEPS
    assert after.config.train.init_from == str(source)
    expected = {"run": str(source), "step": 12, "parameters": restore_run(source).fingerprint}
    assert read_json(workdir / "init.json") == expected
    assert not same_tree(first.params, jax.tree.map(np.asarray, after.params))
    fingerprints = [
        read_json(run / "ledger.json")["tokenizer_fingerprint"] for run in (source, workdir)
    ]
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.slow
def test_a_stopped_run_goes_on_without_the_other(
    encoder_run, config, source, tmp_path, monkeypatch
):
    calls, read = itertools.count(1), loop.read_tokens

    def read_and_stop(text):
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return read(text)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "read_tokens", read_and_stop)
        with pytest.raises(WorkError, match="after step 3"):
            train(config, tmp_path / "run")
    away = source.rename(source.with_name("away"))
    try:
        train(config, tmp_path / "run")
    finally:
        away.rename(source)
    assert same_tree(saved_state(tmp_path / "run", STEPS), saved_state(encoder_run[0], STEPS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.sentinels": 3}, "tokenizer.sentinels is 0 there and 3 here"),
        ({"model.num_heads": 1}, "model.num_heads is 2 there and 1 here"),
        ({"model.d_model": 32}, "model.d_model is 16 there and 32 here"),
        ({"model.positions": "none"}, "model.positions is rotary there and none here"),
        (
            {"model.architecture": "encoder_decoder", "objective.name": "translation"},
            "is missing there",
        ),
        ({"train.init_step": 7}, "no checkpoint of step 7"),
        ({"train.init_from": "no/such/run"}, "no/such/run: not a run directory"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    tiny_data, source, tmp_path, changes, message
):
    config = tiny_data.config(**OTHER | {"train.init_from": str(source)} | changes)
    with pytest.raises(InputError) as caught:
        train(config, tmp_path / "run")
    assert "train.init_from" in str(caught.value)
    assert message in str(caught.value)
    assert not contents(tmp_path)


def test_other_parameters_than_those_of_the_first_start_are_refused(config, source, tmp_path):
    """Of a run that was stopped before its first checkpoint."""
    start = read_start(config, tmp_path)
    start.record(tmp_path)
    assert read_start(config, tmp_path).step == start.step
    replace(start, fingerprint="0" * 16).record(tmp_path)
    with pytest.raises(InputError, match="at step 12 are not those with which this run began"):
        read_start(config, tmp_path)


def test_a_step_needs_a_run(tiny_data):
    with pytest.raises(InputError, match=r"train\.init_step = 3: expected train\.init_from"):
        tiny_data.config(**{"train.init_step": 3})


def test_an_arm_may_start_from_the_run_of_its_own_seed():
    start = {"train.init_from": "runs/decoder/seed-{seed}"}
    arms = {"fresh": {}, "continued": start}
    study = Study(arms=arms, declared=("train.init_from",), seeds="3,5")
    found = {str(run): run.config.train.init_directory for run in plan(study, "", Path("nowhere"))}
    assert found["fresh/seed-3"] is None
    assert str(found["continued/seed-5"]) == "runs/decoder/seed-5"
    with pytest.raises(InputError, match=r"differ in train\.init_from"):
        plan(Study(arms=arms, seeds="3"), "", Path("nowhere"))


def test_encoder_and_decoder_have_the_same_tree_to_the_byte():
    small = {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_ff": 32, "positions": "learned"}
    trees = [
        split_model(build_model(ModelConfig(architecture=name, **small), 40, seed=3))[1]
        for name in ("encoder", "decoder")
    ]
    assert same_tree(*(jax.tree.map(np.asarray, tree) for tree in trees))
    other = nnx.eval_shape(
        lambda: build_model(ModelConfig(architecture="encoder_decoder", **small), 40)
    )
    assert jax.tree.structure(split_model(other)[1]) != jax.tree.structure(trees[0])


def test_an_unset_field_names_no_directory():
    assert Config().train.init_directory is None
    assert with_fields(Config(), {"train.init_from": "a"}).train.init_directory.name == "a"
