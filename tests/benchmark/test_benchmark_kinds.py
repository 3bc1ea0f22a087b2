"""What each benchmark reports, by hand at tiny sizes; how fast anything is does not matter here."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_runs import run_module, tiny_data

from attn_jax.benchmark import (
    attention,
    decode,
    growth,
    kinds,
    lengths,
    loop,
    presets,
    roofline,
    train,
)
from attn_jax.benchmark import input as pipeline
from attn_jax.benchmark.measure import Budget
from attn_jax.config import Config, ModelConfig
from attn_jax.errors import InputError
from attn_jax.models.transformer import build_model
from attn_jax.objectives.batch import Batch
from attn_jax.training.ledger import count_parameters, training_flops
from attn_jax.validation import validate

KEYS = {
    "tokens_per_s",
    "step_ms",
    "compile_s",
    "peak_mib",
    "temp_mib",
    "flops_per_token",
    "flops_convention",
    "roofline_share",
    "device",
    "versions",
}
L, D, T, B, V = 1, 8, 12, 4, 40
BLOCK = 12 * D * D  # kernels: queries, keys, values, output, and an MLP of 4 D
CEILING = 1e12
SIZES = presets.TrainSizes(L, 2, D, T, B, V)
TWO = Budget(steps=2)


@pytest.fixture(autouse=True)
def _tiny_sizes(monkeypatch):
    monkeypatch.setitem(presets.TRAIN, "cpu-char", SIZES)
    monkeypatch.setitem(presets.DECODE, "tiny", presets.DecodeSizes(L, 2, D, 2 * D, V))
    for module in (train, decode, attention):
        monkeypatch.setattr(module, "ceiling", lambda dtype: CEILING)


def check(result, tokens):
    """Every key is there, and those that follow from others do."""
    assert result.keys() >= KEYS
    assert json.loads(json.dumps(result)) == result
    assert result["steps"] == 2
    assert result["tokens_per_step"] == tokens
    assert result["fastest_ms"] <= result["step_ms"] <= result["slowest_ms"]
    assert result["tokens_per_s"] == pytest.approx(tokens / result["step_ms"] * 1e3, rel=1e-4)
    achieved = result["flops_per_token"] * result["tokens_per_s"]
    assert result["roofline_share"] == pytest.approx(achieved / CEILING, rel=1e-4)
    assert result["compile_s"] >= 0
    assert result["peak_mib"] > result["temp_mib"] > 0


@pytest.mark.slow
def test_train_reports_what_it_ran():
    result = train.run(train.synthetic(SIZES), TWO, "tiny")
    check(result, B * T)
    assert result["parameters"] == V * D + T * D + L * (BLOCK + 2 * D) + D
    row = T * L * BLOCK + (T - 1) * V * D + 2 * D * L * T * (T + 1) / 2
    assert result["flops_per_token"] == pytest.approx(3 * 2 * row / T, rel=1e-5)


def test_the_flops_of_the_encoder_are_those_of_its_targets():
    work = train.synthetic(SIZES, "masked_lm")
    model = nnx.eval_shape(lambda: build_model(work.config.model, V))
    row = T * L * BLOCK + round(0.3 * T) * V * D + 2 * D * L * T * T
    params, key = nnx.to_pure_dict(nnx.split(model)[1]), jax.random.key(0)
    texts = iter(work.texts)
    flops = train.flops_per_token(work.config.model, params, work.objective, texts, key)
    assert flops == pytest.approx(3 * 2 * row / T)


def test_presets_are_full_rows_of_one_segment_without_special_ids():
    work = train.synthetic(SIZES)
    for text in work.texts:
        assert text.ids.max() < V - 6 == work.vocabulary.specials.pad
        np.testing.assert_array_equal(text.segments, np.ones((B, T)))
        np.testing.assert_array_equal(text.positions, [np.arange(T)] * B)


def test_bfloat16_is_passed_on():
    assert train.synthetic(SIZES, dtype="bfloat16").config.model.dtype == "bfloat16"


@pytest.mark.parametrize("beam", [1, 2])
@pytest.mark.slow
def test_decode_counts_what_is_generated(beam):
    S, N = 5, 3
    shape = decode.DecodeShape(beam, batch_size=B, source_length=S, target_length=N)
    result = decode.run("tiny", shape, TWO)
    check(result, B * N)
    assert result["beam_size"] == beam
    assert decode.NEVER not in range(V)
    block = 4 * D * D + 4 * D * D  # of a side: attention, and an MLP of 2 D
    # Of the source: its stack, its pairs, keys and values for the target.
    flops = 2 * (S * block + S * 2 * D * D + 2 * D * S * S)
    # Of each hypothesis: its stack, cross-attention's queries and output, the vocabulary, pairs.
    pairs = N * (N + 1) / 2 + N * S
    flops += beam * 2 * (N * block + N * 2 * D * D + N * V * D + 2 * D * pairs)
    assert result["flops_per_token"] == pytest.approx(flops / N, rel=1e-5)


def test_the_cost_of_a_token_by_hand():
    """2 s before the loop, then 1 s and 3 s a token."""
    assert lengths.per_token([2.0 + 1, 2.0 + 4 * 3], one=2.0, lengths=(2, 5)) == [1, 3]


@pytest.mark.parametrize("beam", [1, 2])
def test_the_rest_attends_to_its_first_slots_but_keeps_a_whole_cache(monkeypatch, beam):
    """Its attention works as much in a long generation as in a short one; nothing else is less."""
    read, whole = [], []

    def dense(q, k, v, queries, keys, window):
        read.append((k.shape[2], v.shape[2], keys.segments.shape[-1]))
        return q

    def first(q, k, *rest):
        whole.append(k.shape[2])
        return attend_first_slots(q, k, *rest)

    attend_first_slots = lengths.attend_first_slots
    monkeypatch.setattr(lengths, "attend_dense", dense)
    monkeypatch.setitem(lengths.KERNELS, lengths.FIRST_SLOTS, first)
    shape = decode.DecodeShape(beam, B, source_length=20, target_length=40)
    decode.generate(*decode.random_model("tiny", shape, "float32", lengths.FIRST_SLOTS), shape)
    assert set(read) == {(16, 16, 16)}
    assert max(whole) == 1 + beam * 39  # the prompt, and what is read of the generated ones


def test_no_config_can_name_the_kernel_of_a_benchmark():
    with pytest.raises(InputError, match=r"model\.attention"):
        validate(Config(model=ModelConfig(attention=lengths.FIRST_SLOTS)))


@pytest.mark.slow
def test_lengths_are_told_apart_from_their_attention(monkeypatch, capsys):
    monkeypatch.setattr(lengths, "LENGTHS", (2, 4))
    result = lengths.run("tiny", decode.DecodeShape(batch_size=B), TWO)
    found = result["results"]
    assert found["lengths"] == [2, 4]
    whole, attention, rest = (found[f"{name}_ms"] for name in ("whole", "attention", "rest"))
    np.testing.assert_allclose(attention, np.subtract(whole, rest), rtol=1e-3)
    assert result["growth"]["whole"] == pytest.approx(whole[1] / whole[0], rel=1e-3)
    assert result["batch_size"] == B
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "| ms a token of every row | 2 tokens | 4 tokens | last / first |"
    assert len(table) == 5


@pytest.mark.parametrize("document", [0, 5])
def test_attention_flops_are_the_ledgers(document):
    length = 12
    row = attention.packed_row(length, document)
    config = ModelConfig(num_layers=1, d_model=attention.HEADS * attention.HEAD_WIDTH)
    batch = Batch(row, row.ids, jnp.zeros(row.ids.shape, jnp.float32))
    ledger = training_flops(config, {"embedding": jnp.zeros(0)}, batch)
    assert attention.flops(length, document) == ledger


def test_packed_documents_by_hand():
    row = attention.packed_row(5, 2)
    assert row.segments.tolist() == [[1, 1, 2, 2, 3]]
    assert row.positions.tolist() == row.blocks.tolist() == [[0, 1, 0, 1, 0]]


@pytest.mark.slow
def test_attention_reports_every_length():
    result = attention.run(["dense"], [4, 6, 8], 0, "float32", TWO)
    check(result, 8)
    assert (result["kernel"], result["T"]) == ("dense", 8)
    assert [entry["T"] for entry in result["results"]["dense"]] == [4, 6, 8]
    assert result["memory_fit"].keys() == {"dense"}


def test_a_linear_fit_by_hand():
    line = attention.linear_fit([1024, 2048, 4096], [12.0, 22.0, 42.0])
    assert line["mib_per_1024"] == pytest.approx(10)
    assert line["intercept_mib"] == pytest.approx(2)
    assert line["worst_share"] == pytest.approx(0, abs=1e-9)
    square = attention.linear_fit([1024, 2048, 4096], [1.0, 4.0, 16.0])
    assert square["worst_share"] > 0.05


def test_the_input_pipeline_counts_tokens(tiny_data):
    result = pipeline.run(tiny_data.config(), TWO, "tiny")
    assert result.keys() >= KEYS
    assert result["tokens_per_s"] == pytest.approx(
        result["tokens_per_step"] * result["batches_per_s"], rel=1e-4
    )
    assert 0 < result["tokens_per_step"] <= 64  # data.batch_tokens


def test_a_config_is_trained_on_its_own_data(tiny_data):
    work = train.real(tiny_data.config())
    assert len(work.texts) == train.BATCHES
    assert work.vocabulary.size == 262  # bytes, and the special ones
    assert all(text.ids.shape == (4, 16) for text in work.texts)


def test_the_ceiling_is_a_speed(monkeypatch):
    monkeypatch.setattr(roofline, "LONG", 0)
    assert 1e6 < roofline.ceiling("float32", (64, 16, 64), rounds=2) < 1e16


def test_the_ceiling_is_of_programs_that_take_long(monkeypatch):
    """Of short ones it would be the time that a call takes."""
    monkeypatch.setattr(roofline, "_fastest", lambda operands, pairs, rounds: 1e-3 + 1e-4 * pairs)
    flops = 128 * 4 * 64 * 16 * 64
    one, both = jax.local_devices()[:1], jax.local_devices()[:1] * 2
    for devices, count in ((one, 1), (both, 2)):
        monkeypatch.setattr(jax, "local_devices", lambda devices=devices: devices)
        found = roofline.ceiling("float32", (64, 16, 64))
        assert found == pytest.approx(count * flops / 13.8e-3)
    found = roofline.ceiling("float32", (64, 16, 64), devices=1)
    assert found == pytest.approx(flops / 13.8e-3)


def shapes_of(config, vocab):
    shapes = nnx.eval_shape(lambda: build_model(config, vocab))
    return count_parameters(nnx.to_pure_dict(nnx.split(shapes)[1]))[0]


@pytest.mark.parametrize(("preset", "parameters"), [("gpu-char", 10_745_088), ("d512", 23_206_400)])
def test_train_presets_have_the_parameters_of_the_peer(preset, parameters):
    s = presets.TRAIN[preset]
    layer = 3 * s.width**2 + s.width**2 + 2 * 4 * s.width**2 + 2 * s.width
    ours = shapes_of(presets.train_config(s).model, s.vocab)
    assert ours == s.vocab * s.width + s.length * s.width + s.layers * layer + s.width
    assert ours == parameters


@pytest.mark.slow
def test_decode_presets_have_the_parameters_of_the_peer():
    s = presets.DECODE["base"]
    w, norm = s.width, 2 * s.width
    mlp = 2 * w * s.ffn + s.ffn + w + norm
    attention = 4 * w * w + 4 * w + norm
    expected = s.vocab * w + s.layers * (3 * attention + 2 * mlp) + 2 * norm
    assert shapes_of(presets.decode_config(s), s.vocab) == expected


REFUSED = {
    "preset": lambda: presets.choose("preset", "cpuchar", presets.TRAIN),
    "objective": lambda: train.synthetic(SIZES, "mased_lm"),
    "dtype": lambda: train.synthetic(SIZES, dtype="float16"),
    "preset = 'smal'": lambda: decode.run("smal", decode.DecodeShape(), TWO),
    "preset = 'bas'": lambda: lengths.run("bas", decode.DecodeShape(), TWO),
    "target_length: not read": lambda: kinds.check_flags("lengths", ["preset", "target_length"]),
    "beam_size = 1001": lambda: decode.run("tiny", decode.DecodeShape(beam_size=1001), TWO),
    "kernels = 'dens'": lambda: attention.run(["dens"], [4], 0, "float32", TWO),
    "T = 'x'": lambda: presets.whole_number("T", "x"),
    "seconds = nan": lambda: Budget(seconds=float("nan")),
    "T = '0'": lambda: presets.whole_number("T", "0"),
    "what = 'trian'": lambda: kinds.check_flags("trian", []),
    "what = ''": lambda: kinds.check_flags(None, []),
    "beam_size: not read": lambda: kinds.check_flags("train", ["preset", "beam_size"]),
    "config: not read": lambda: kinds.check_flags("train", ["preset", "config"]),
    "dtype: not read": lambda: kinds.check_flags("train", ["config", "dtype"]),
}


@pytest.mark.parametrize("start", REFUSED)
def test_what_is_wrong_is_said_in_one_line(start):
    with pytest.raises(InputError) as refusal:
        REFUSED[start]()
    assert str(refusal.value).startswith(start)
    assert "\n" not in str(refusal.value)


def test_the_runner_takes_the_kind_as_its_first_argument(run_module, tiny_data, tmp_path):
    file = tiny_data.config_file(tmp_path / "experiment.py")
    done = run_module("experiments.benchmark", "input", f"--config={file}", "--steps=2")
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["kind"] == "input"
    done = run_module("experiments.benchmark", "--what=train", "--preset=cpuchar")
    assert (done.status, done.stdout) == (2, "")
    assert "did you mean 'cpu-char'?" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_picture_that_cannot_be_drawn_is_refused_first(run_module, tmp_path):
    command = ("experiments.benchmark", "--what=growth", "--preset=cpu-char")
    done = run_module(*command, f"--picture={tmp_path}")
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert f"picture = {str(tmp_path)!r}: is a directory" in done.stderr


def test_all_flags_that_a_kind_reads_exist(run_module):
    names = {name for read in kinds.READ.values() for name in read}
    help_text = run_module("experiments.benchmark", "--help").stdout
    assert not [name for name in names if f"--{name}:" not in help_text.replace("[no]", "")]


@pytest.mark.slow
def test_growth_times_every_size_and_draws_it(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "FACTORS", (1, 2))
    monkeypatch.setattr(growth, "SIZES", {"batch": "rows"})
    result = growth.run("cpu-char", "causal_lm", "float32", TWO, tmp_path / "growth.svg")
    values = {name: found["values"] for name, found in result["results"].items()}
    assert values == {"batch": [B, 2 * B]}
    assert growth.scaled(SIZES, "width", 4).heads == 8
    assert all(len(found["step_ms"]) == 2 for found in result["results"].values())
    assert result["results"]["batch"]["temp_mib"][0] < result["results"]["batch"]["temp_mib"][1]
    assert "<svg" in (tmp_path / "growth.svg").read_text()


@pytest.mark.slow
def test_loop_compares_the_whole_loop_with_its_step(tiny_data):
    config = tiny_data.config(train__steps=100, optimizer__warmup_steps=50)  # more than is run
    result = loop.run(config, Budget(steps=12), "tiny")
    assert result["steps"] == 10  # 6 windows of 2 steps, the first not timed
    assert result["share_of_step"] == pytest.approx(
        result["tokens_per_s"] / result["step"]["tokens_per_s"], rel=1e-4
    )
    assert result["step"]["steps"] == 12


def test_loop_trains_a_preset_on_prose_of_its_own_vocabulary():
    assert loop.prose(presets.TRAIN["d512"]).tokenizer.vocab_size == 8192
    assert loop.prose(SIZES).tokenizer.name == "char"
