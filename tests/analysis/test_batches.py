"""A batch as it is printed, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import run_module, tiny_data, train_command

from attn_jax.analysis.batches import describe_row
from attn_jax.data.pipeline import open_dataset
from attn_jax.data.tokenizers import CharTokenizer
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives import make_objective
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.causal_lm import CausalLM
from attn_jax.objectives.translation import Translation
from attn_jax.training.step import step_keys

CAUSAL = """\
column  input           position segment block  target
     0  <bos>                  0       1     0  'a'
     1  'a'                    1       1     1  '<eos>'
     2  <eos>                  2       1     2
     3  <pad>                  2       0     2

who sees whom (rows: queries, columns: keys)
x . . .
x x . .
x x x .
. . . ."""

CROSS = """\
cross-attention: target sees source (rows: queries, columns: keys)
x x .
x x .
x x ."""


def row_of(tokenizer, *ids):
    ids = jnp.array([ids, ids], jnp.int32)
    return Tokens.of(ids, ids != tokenizer.specials.pad)


def test_a_row_by_hand():
    tokenizer = CharTokenizer.train(["ab"])
    s, a = tokenizer.specials, tokenizer.encode("a")[0]
    batch = CausalLM()(row_of(tokenizer, s.bos, a, s.eos, s.pad), jax.random.key(0))
    assert describe_row(batch, tokenizer, 1, 9) == CAUSAL
    assert describe_row(batch, tokenizer, 0, 2).endswith("\nx .\nx x")
    windowed = describe_row(batch, tokenizer, 0, 9, window=1)
    assert windowed.endswith("\nx . . .\n. x . .\n. . x .\n. . . .")


def test_targets_at_some_places_and_their_weights():
    tokenizer = CharTokenizer.train(["ab"])
    tokens = row_of(tokenizer, *tokenizer.encode("aabb")).bidirectional()
    a, b = tokenizer.encode("ab")
    at, targets = jnp.array([[3, 0, 0]] * 2), jnp.array([[a, b, a]] * 2)
    weights = jnp.array([[1.0, 0.5, 0.0]] * 2)
    lines = describe_row(Batch(tokens, targets, weights, at), tokenizer, 0, 9).splitlines()
    assert [line.split()[5:] for line in lines[1:5]] == [["'b'", "x", "0.5"], [], [], ["'a'"]]


def test_a_pair_has_a_source_and_who_sees_it():
    tokenizer = CharTokenizer.train(["ab"])
    s, (a, b) = tokenizer.specials, tokenizer.encode("ab")
    pair = Pair(row_of(tokenizer, a, s.eos, s.pad), row_of(tokenizer, s.bos, b, b, s.eos))
    text = describe_row(Translation(s)(pair, jax.random.key(0)), tokenizer, 0, 9)
    assert text.endswith(CROSS)
    assert text.count("<pad>") == 1
    assert "\n     0  <bos>                  0       1     0  'b'\n" in text


@pytest.mark.slow
def test_the_runner_shows_what_the_step_sees(run_module, train_command, tiny_data):
    fields = {"objective.name": "masked_lm", "model.architecture": "encoder", "train.seed": 3}
    command = ("experiments.show_batch", train_command(**fields)[1])
    done = run_module(*command, "--step=2", "--row=1", "--columns=99")
    assert done.status == 0, done.stderr
    config = tiny_data.config(**fields)
    dataset = open_dataset(config)
    batches = iter(dataset.train_batches(3))
    text = [next(batches) for _ in range(3)][2]
    objective = make_objective(config.objective, dataset.tokenizer.vocabulary)
    batch = objective(jax.tree.map(np.asarray, text), step_keys(3, 2)[0])
    assert done.stdout.endswith(describe_row(batch, dataset.tokenizer, 1, 99) + "\n")
    done = run_module(*command, "--row=9")
    assert (done.status, done.stderr.count("\n")) == (2, 1)
    assert "row = 9: expected at most 3, the last of the batch" in done.stderr
