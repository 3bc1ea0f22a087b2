"""CTranslate2 computes what our model computes: scores, beam search, BLEU of a trained model.

pip install -r requirements-peers.txt, then: python -m pytest -m peers tests/export
"""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sacrebleu.metrics import BLEU
from tiny_runs import run_module

from attn_jax.config import with_fields
from attn_jax.data.pipeline import open_dataset
from attn_jax.data.tokenizers import WhitespaceTokenizer, load_tokenizer
from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.explain import explain
from attn_jax.decoding.text import Writer
from attn_jax.export.ctranslate2 import write
from attn_jax.models.tokens import Tokens
from attn_jax.training.loop import train
from attn_jax.training.restore import restore_run
from attn_jax.training.state import split_model
from attn_jax.validation import validate
from configs import translate

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason="ctranslate2 is missing: pip install -r requirements-peers.txt"
)
pytestmark = pytest.mark.peers

MAX_NEW, B = 8, 12
TOKENIZER = WhitespaceTokenizer([f"w{i}" for i in range(74)])  # 80 tokens, as tiny models have
SPECIALS, NAMES = TOKENIZER.specials, TOKENIZER.names()
FIRST = 6  # ordinary token
MODELS = {
    "pre relu sinusoidal bias": {"activation": "relu", "positions": "sinusoidal", "bias": True},
    "pre gelu learned": {"positions": "learned"},
    "pre swiglu rotary rms": {"activation": "swiglu", "norm": "rms"},
    "pre relu none, one key head": {"activation": "relu", "positions": "none", "num_kv_heads": 1},
    "post gelu sinusoidal": {"norm_position": "post", "positions": "sinusoidal"},
    "post relu learned bias": {
        "norm_position": "post",
        "activation": "relu",
        "positions": "learned",
        "bias": True,
    },
    "post gelu rotary bias, grouped heads": {
        "norm_position": "post",
        "bias": True,
        "num_heads": 4,
        "num_kv_heads": 2,
    },
}


def translator(folder):
    return ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


@pytest.fixture(scope="module", params=MODELS)
def both(request, tiny, tmp_path_factory):
    """A random model, ours and theirs."""
    model = tiny(architecture="encoder_decoder", **MODELS[request.param])
    graph, params = nnx.split(model)
    # Flatter, so that many texts, short and long, are nearly as likely as each other.
    params["embedding"].set_value(params["embedding"][...] / 2)
    model = nnx.merge(graph, params)
    folder = tmp_path_factory.mktemp("model")
    write(model.config, split_model(model)[1], TOKENIZER, folder, rows=16)
    return model, translator(folder)


def draw(seed):
    """Rows of random length as names, and as tokens that end in <eos>."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(FIRST, len(NAMES), n) for n in rng.integers(1, MAX_NEW, B)]
    ids = np.full((B, MAX_NEW), SPECIALS.pad, np.int32)
    for row, found in zip(ids, rows, strict=True):
        row[: len(found) + 1] = [*found, SPECIALS.eos]
    real = np.cumsum(ids == SPECIALS.eos, axis=1) - (ids == SPECIALS.eos) == 0
    return [[NAMES[i] for i in row] for row in rows], ids, real


def test_teacher_forced_scores_are_the_same(both):
    model, theirs = both
    sources, ids, real = draw(0)
    targets, written, _ = draw(1)
    prompt = Tokens.of(jnp.full((B, 1), SPECIALS.bos))
    source = Tokens.of(jnp.asarray(ids), jnp.asarray(real))
    ours = np.asarray(explain(model, prompt, written, source, eos=SPECIALS.eos).log_probs)
    for row, found in zip(ours, theirs.score_batch(sources, targets), strict=True):
        assert found.tokens[-1] == NAMES[SPECIALS.eos]
        np.testing.assert_allclose(row[: len(found.log_probs)], found.log_probs, atol=1e-4)
        assert not np.any(row[len(found.log_probs) :])


@pytest.mark.parametrize(("alpha", "early"), [(0.0, False), (1.0, False), (1.0, True)])
def test_beam_search_finds_the_same_texts_with_the_same_scores(both, alpha, early):
    """Where it may end at once, and goes on until none can become better, or until five ended."""
    model, theirs = both
    sources, ids, real = draw(0)
    prompt = Tokens.of(jnp.full((B, 1), SPECIALS.bos))
    source = Tokens.of(jnp.asarray(ids), jnp.asarray(real))
    ends = {"max_new": MAX_NEW, "eos": SPECIALS.eos, "pad": SPECIALS.pad}
    beam = Beam(5, alpha, early_stopping=early)
    ours = beam_search(model, prompt, source, beam=beam, **ends)
    options = same_search(alpha, MAX_NEW, early)
    found = theirs.translate_batch(sources, **options, return_scores=True)
    written = [[NAMES[i] for i in before_end(row)] for row in np.asarray(ours.ids[:, 0])]
    assert written == [result.hypotheses[0] for result in found]
    scores = [result.scores[0] for result in found]
    np.testing.assert_allclose(ours.scores[:, 0], scores, atol=1e-4)


def before_end(row):
    """Random models write padding as readily as anything else: only <eos> ends a row."""
    ends = np.flatnonzero(row == SPECIALS.eos)
    return row[: ends[0]] if len(ends) else row


def same_search(alpha, max_new, early=True):
    """What makes their beam search ours."""
    return {
        "beam_size": 5,
        "length_penalty": alpha,
        "max_decoding_length": max_new,
        "min_decoding_length": 0,  # theirs is 1: <eos> cannot come first
        "patience": 1 if early else max_new,
    }


@pytest.mark.slow
def test_a_trained_model_has_the_same_bleu(run_module, tmp_path):
    fields = {
        "model.num_layers": 1,
        "model.d_model": 64,
        "model.d_ff": 256,
        "tokenizer.vocab_size": 600,
        "train.steps": 250,
        "train.eval_every": 0,
        "eval.evaluators": "loss",
        "data.data_dir": str(tmp_path / "data"),
    }
    config, workdir, folder = translate.get_config(), tmp_path / "run", tmp_path / "model"
    train(validate(with_fields(config, fields)), workdir)
    done = run_module("experiments.export", f"--workdir={workdir}", f"--output={folder}")
    assert done.status == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "model", "run"]

    run = restore_run(workdir)
    texts = open_dataset(run.config, run.tokenizer).texts("test")
    sources, references = zip(*(texts[i] for i in range(200)), strict=True)
    model, length = nnx.merge(run.graph, run.params), run.config.data.length
    writer = Writer(model, run.objective, run.tokenizer, length, Beam(5, 1.0))
    ours = writer.write_texts(sources)

    shutil.rmtree(workdir)  # the folder is all that is needed
    tokenizer, names = (
        load_tokenizer(folder),
        json.loads((folder / "shared_vocabulary.json").read_text()),
    )
    tokens = [[names[i] for i in tokenizer.encode(source)] for source in sources]
    found = translator(folder).translate_batch(tokens, **same_search(1.0, length))
    theirs = [tokenizer.decode(map(names.index, result.hypotheses[0])) for result in found]

    found = translator(folder).translate_batch(tokens, beam_size=5, max_decoding_length=length)
    default = [tokenizer.decode(map(names.index, result.hypotheses[0])) for result in found]
    bleus = [BLEU().corpus_score(side, [references]).score for side in (ours, theirs, default)]
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"BLEU {bleus[0]:.2f} and {bleus[1]:.2f}; {same} of 200 translations are the same")
    print(f"BLEU {bleus[2]:.2f} with CTranslate2's defaults")
    assert bleus[0] > 20
    assert abs(bleus[0] - bleus[1]) < 0.1
    assert same >= 198
