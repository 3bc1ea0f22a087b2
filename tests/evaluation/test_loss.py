"""The loss evaluator against a loop over documents, in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_runs import TRANSLATION

from attn_jax.errors import InputError
from attn_jax.evaluation.evaluators import refuse_unfit
from attn_jax.evaluation.loss import Loss
from attn_jax.models.tokens import Tokens
from attn_jax.objectives import OBJECTIVES

LINES = ["zwölf Äpfel und 3 Birnen", "naïve Füchse", "drei Füße", "eins und zwei", "ja"]


@pytest.fixture(scope="module")
def characters(tiny_data):
    """A text whose characters are one or two bytes."""
    path = tiny_data.folder / "umlauts.txt"
    path.write_text("".join(f"{LINES[i * i % 5]} {i % 7}\n" for i in range(300)), encoding="utf-8")
    return {"data.train_files": str(path), "tokenizer.name": "char"}


def one_row(ids, width=24):
    row = np.zeros((1, width), np.int32)
    row[0, : len(ids)] = ids
    return Tokens.of(jnp.asarray(row), jnp.arange(width)[None] < len(ids))


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def slow_sums(log_p, targets, tokenizer):
    """Sums over the targets of one sentence: nll, right guesses, targets, bytes of their text."""
    nll = -sum(log_p[n, target] for n, target in enumerate(targets))
    correct = sum(log_p[n].argmax() == target for n, target in enumerate(targets))
    return np.array([nll, correct, len(targets), len(tokenizer.decode(targets).encode())])


def check(found, sums):
    nll, correct, count, num_bytes = sums
    assert found["loss"] == pytest.approx(nll / count, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-5)
    assert found["accuracy"] == pytest.approx(correct / count)


def test_a_causal_lm_equals_a_loop_over_documents(tiny_data, make_subject, characters):
    fields = characters | {"eval.max_items": 0, "data.length": 24, "data.batch_tokens": 96}
    subject, params = make_subject(tiny_data.config(**fields))
    model = nnx.merge(subject.graph, params)
    logits = jax.jit(lambda tokens: model.logits(model(tokens.causal())))
    total, rows = np.zeros(4), []
    for _, batch in subject.dataset.eval_batches("validation"):
        for ids, segments in zip(batch.ids, batch.segments, strict=True):
            of_row = np.zeros(4)
            for segment in range(1, segments.max() + 1):
                words = ids[segments == segment]
                log_p = log_softmax(logits(one_row(words))[0])
                of_row += slow_sums(log_p, words[1:], subject.dataset.tokenizer)
            rows.append(of_row)
            total += of_row
    found = Loss(subject).run(params)
    check(found, total)
    assert total[3] != total[2]  # bytes are not tokens here
    assert (found["split"], found["mask"]) == ("validation", "causal")
    assert found["items"] == sum(row[2] > 0 for row in rows)
    # The standard error is about that of a bootstrap over rows.
    rows = np.array([row for row in rows if row[2]])
    drawn = np.random.default_rng(0).integers(0, len(rows), (4000, len(rows)))
    sums = rows[drawn].sum(1)
    assert found["loss_stderr"] == pytest.approx((sums[:, 0] / sums[:, 2]).std(), rel=0.25)


def test_translation_equals_a_loop_over_pairs(tiny_data, make_subject):
    subject, params = make_subject(tiny_data.config(**TRANSLATION))
    model, tokenizer = nnx.merge(subject.graph, params), subject.dataset.tokenizer
    s = tokenizer.specials
    logits = jax.jit(lambda source, target: model.logits(model(target.causal(), source)))
    total = np.zeros(4)
    for source, target in subject.dataset.texts("validation"):
        ids = [s.bos, *tokenizer.encode(target), s.eos]
        pair = one_row([*tokenizer.encode(source), s.eos]), one_row(ids[:-1])
        total += slow_sums(log_softmax(logits(*pair)[0]), ids[1:], tokenizer)
    found = Loss(subject).run(params)
    check(found, total)
    assert found["items"] == len(subject.dataset.texts("validation")) == 3


def test_only_the_target_side_is_scored_whatever_is_trained_on(tiny_data, make_subject):
    fields = TRANSLATION | {"model.architecture": "decoder"}
    fields |= {"objective.name": "causal_translation"}
    found = []
    for source_loss in (0.0, 0.5):
        config = tiny_data.config(**fields, objective__source_loss=source_loss)
        subject, params = make_subject(config)
        assert subject.objective.source_loss == source_loss
        found.append(Loss(subject).run(params))
    assert found[0] == found[1]
    assert found[0]["scored"] == "target side"


@pytest.mark.parametrize("objective", ["causal_lm", "masked_lm"])
def test_the_size_of_batches_does_not_matter(tiny_data, make_subject, objective):
    results = []
    for batch_tokens in (32, 112):
        (architecture,) = OBJECTIVES[objective].architectures
        fields = {"objective.name": objective, "model.architecture": architecture}
        fields |= {"data.batch_tokens": batch_tokens, "eval.max_items": 0}
        config = tiny_data.config(**fields)
        subject, params = make_subject(config)
        results.append(Loss(subject).run(params))
    for name, value in results[0].items():
        for other in results[1:]:
            assert other[name] == (value if isinstance(value, str) else pytest.approx(value, 1e-5))


def test_more_items_have_a_smaller_error_and_none_is_read_twice(tiny_data, make_subject):
    found = {}
    for items in (0, 2, 10**6):
        subject, params = make_subject(tiny_data.config(eval__max_items=items))
        found[items] = Loss(subject).run(params)
    assert found[2]["items"] == 2
    assert found[0] == found[10**6]
    assert found[0]["items"] > 2


def test_a_masked_lm_has_no_perplexity(tiny_data, make_subject):
    """T17: the exponential of its loss is no likelihood of the text."""
    fields = {"objective.name": "masked_lm", "model.architecture": "encoder"}
    subject, params = make_subject(tiny_data.config(**fields))
    found = Loss(subject).run(params)
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert not {"perplexity", "bits_per_byte"} & found.keys()
    assert found["mask"] == "bidirectional"
    assert found == Loss(subject).run(params)  # the same places are masked each time


def test_the_parts_of_a_mixture_are_measured_apart(tiny_data, make_subject):
    """T17: as each objective on its own would; nothing is named as if it were both."""
    found = {}
    for name in ("mixture", "causal_lm", "masked_next_token"):
        subject, params = make_subject(tiny_data.config(**{"objective.name": name}))
        found[name] = Loss(subject).run(params)
    assert set(found["mixture"]) == {"split", "mask", "causal", "masked"}
    for part, name in (("causal", "causal_lm"), ("masked", "masked_next_token")):
        alone = {k: v for k, v in found[name].items() if k != "split"}
        assert found["mixture"][part] == pytest.approx(alone)
    assert "perplexity" in found["mixture"]["causal"]
    assert not {"perplexity", "bits_per_byte"} & found["mixture"]["masked"].keys()
    assert "pseudo_perplexity" in found["mixture"]["masked"]


def test_the_rate_of_masking_is_that_of_the_last_step(tiny_data, make_subject):
    fields = {"objective.name": "masked_lm", "model.architecture": "encoder"}
    losses = {}
    for first, last in ((0.5, 0.2), (0.2, 0.0), (0.5, 0.0)):
        rates = {"objective.mask_rate": first, "objective.final_mask_rate": last}
        subject, params = make_subject(tiny_data.config(**fields | rates))
        losses[first, last] = Loss(subject).run(params)["loss"]
    assert losses[0.5, 0.2] == pytest.approx(losses[0.2, 0.0])
    assert abs(losses[0.5, 0.2] - losses[0.5, 0.0]) > 1e-4


SPANS = {"objective.name": "span_corruption", "model.architecture": "encoder_decoder"}
SPANS |= {"tokenizer.sentinels": 2}
ONE_STACK = {"objective.name": "prefix_span_corruption", "model.architecture": "decoder"}


@pytest.mark.parametrize("fields", [SPANS, SPANS | ONE_STACK], ids=["pair of stacks", "one stack"])
def test_hidden_spans_have_no_perplexity_and_no_shared_positions(tiny_data, make_subject, fields):
    subject, params = make_subject(tiny_data.config(**fields))
    found = Loss(subject).run(params)
    assert found["pseudo_perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-4)
    assert "perplexity" not in found
    assert found == Loss(subject).run(params)
    refuse_unfit(subject.config, subject.dataset, subject.objective)
    wrong = {"shared_positions": "writes spans"}
    if fields["model.architecture"] == "encoder_decoder":
        wrong |= {"attention": "needs a single stack"}
    for evaluator, message in wrong.items():
        config = tiny_data.config(**fields | {"eval.curve": evaluator})
        with pytest.raises(InputError, match=rf"eval.curve: '{evaluator}' needs .*") as caught:
            refuse_unfit(config, subject.dataset, subject.objective)
        assert message in str(caught.value)


def test_the_test_split_is_another(tiny_data, make_subject):
    subject, params = make_subject(tiny_data.config())
    other, _ = make_subject(tiny_data.config(eval__split="test"))
    found = Loss(other).run(params)
    assert found["split"] == "test"
    assert found["loss"] != Loss(subject).run(params)["loss"]
