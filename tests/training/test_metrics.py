"""metrics.jsonl, and the same numbers in TensorBoard."""

import json
from collections import Counter

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import read_lines

from attn_jax.errors import InputError
from attn_jax.training.metrics import MetricsLog, read_metrics, refuse_missing_wandb
from attn_jax.training.optimizers import make_schedule
from attn_jax.training.run_directory import read_config


def scalars(workdir):
    """`{(tag, step): [values]}` of all event files."""
    events = EventAccumulator(str(workdir / "tensorboard"))
    events.Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        for event in events.Tensors(tag):
            value = event.tensor_proto.float_val[0]
            found.setdefault((tag, event.step), []).append(value)
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            found.setdefault((tag, event.step), []).append(event.value)
    return found


def assert_mirrored(workdir):
    """Every number of metrics.jsonl is in TensorBoard once, and nothing else is."""
    expected = {
        (f"{line['split']}/{name}", line["step"]): value
        for line in read_lines(workdir)
        for name, value in line.items()
        if name not in ("step", "split")
    }
    found = scalars(workdir)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == [pytest.approx(value, rel=1e-6)]
    return found


def test_the_lines_of_a_run(lm_run):
    config, lines = read_config(lm_run), read_lines(lm_run)
    assert [(line["step"], line["split"]) for line in lines] == [
        (4, "train"),
        (6, "validation"),
        (8, "train"),
        (12, "train"),
        (12, "validation"),
    ]
    train = [line for line in lines if line["split"] == "train"]
    assert set(train[0]) == {
        "step",
        "split",
        "loss",
        "accuracy",
        "grad_norm",
        "learning_rate",
        "tokens",
        "targets",
        "seconds",
        "tokens_per_s",
    }
    rate = make_schedule(config.optimizer, config.train.steps)
    for line in train:
        assert line["learning_rate"] == pytest.approx(float(rate(line["step"] - 1)))
        assert 0 < line["targets"] < line["tokens"] <= 64 * line["step"]
    seconds = [line["seconds"] for line in train]
    assert seconds == sorted(seconds)
    validation = [line for line in lines if line["split"] == "validation"]
    assert {"loss/loss", "loss/perplexity", "loss/items"} <= set(validation[0])


def test_tensorboard_holds_the_same_numbers(lm_run):
    assert ("train/loss", 4) in assert_mirrored(lm_run)


def test_a_resumed_log_shows_no_step_twice(tmp_path):
    for start, last in ((0, 6), (4, 9), (9, 9)):
        log = MetricsLog(tmp_path, start)
        for step in range(start + 1, last + 1):
            log.write(step, "train", {"loss": 10 * start + step, "tokens": 7})
        log.write(last, "validation", {"loss/loss": 0.5 * start})
        log.close()
    lines = read_lines(tmp_path)
    steps = [line["step"] for line in lines if line["split"] == "train"]
    assert steps == list(range(1, 10))
    assert [line["loss"] for line in lines if "loss" in line] == [1, 2, 3, 4, *range(45, 50)]
    # The validation of step 9 is kept, as the log is resumed after it; a run does not repeat it.
    assert Counter(line["split"] for line in lines)["validation"] == 2
    found = scalars(tmp_path)
    assert [found["train/loss", step] for step in (4, 5)] == [[4.0], [45.0]]
    assert ("train/loss", 6) in found
    assert found["train/loss", 6] == [46.0]


def test_a_damaged_log_is_refused_with_its_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n' + json.dumps({"step": 2}) + "\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: not valid JSON"):
        MetricsLog(tmp_path, 5)
    lines = {'{"split": "train"}': "not a line of metrics", "3": "expected a JSON object, not int"}
    lines['{"step": "1", "split": "train"}'] = "not a line of metrics"
    for line, problem in lines.items():
        path.write_text(f"{line}\n")
        with pytest.raises(InputError, match=rf"metrics\.jsonl:1: {problem}"):
            read_metrics(tmp_path)
    path.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl: not UTF-8"):
        read_metrics(tmp_path)


def test_wandb_that_is_not_installed_is_an_input_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InputError, match=r"train\.wandb = True: needs `pip install wandb`"):
        refuse_missing_wandb()
