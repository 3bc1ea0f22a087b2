"""Scores of known translations, the copy baseline, and texts that stay in their places."""

import numpy as np
import pytest
import sacrebleu
from tiny_runs import TRANSLATION

from attn_jax.comparison.items import bleu
from attn_jax.decoding import text as decoding
from attn_jax.decoding.beam import Beam
from attn_jax.decoding.sampling import GREEDY
from attn_jax.decoding.text import Writer
from attn_jax.evaluation import translation
from attn_jax.evaluation.results import flat_numbers
from attn_jax.evaluation.translation import TranslationQuality


@pytest.fixture(scope="module")
def subject_of(tiny_data, make_subject):
    """Returns a function that makes a subject of 12 held-out pairs."""
    source, target = tiny_data.folder / "held-out.en", tiny_data.folder / "held-out.de"
    source.write_text("".join(f"{i} one two three four\n" for i in range(12)))
    target.write_text("".join(f"{i} ein two drei vier\n" for i in range(12)))
    files = {"data.validation_files": f"{source},{target}"}

    def make(**fields):
        return make_subject(tiny_data.config(**TRANSLATION | files | fields))

    return make


def evaluate(subject_of, monkeypatch, translate, **fields):
    """Runs the evaluator with a made-up model that gives its answers in another order."""
    subject, params = subject_of(**fields)

    class MadeUp(Writer):
        def __init__(self, model, objective, tokenizer, max_new, search):
            searches.append(search)

        def read(self, text):
            return text

        def cut(self, text):
            return text

        def write(self, texts):
            for i in np.random.default_rng(0).permutation(len(texts)):
                yield int(i), translate(texts[i])

    searches = []
    monkeypatch.setattr(translation, "Writer", MadeUp)
    return TranslationQuality(subject).run(params) | {"searches": searches}


def reference(source):
    return source.replace("one", "ein").replace("three", "drei").replace("four", "vier")


def half_right(source):
    right = reference(source)
    return right if int(source.split()[0]) % 2 else right.replace("drei", "rot")


def test_perfect_translations_score_100(subject_of, monkeypatch):
    found = evaluate(subject_of, monkeypatch, reference)
    assert found["exact_match"] == 100
    assert found["bleu"] == pytest.approx(100)
    assert found["chrf"] == pytest.approx(100)
    assert (found["items"], found["split"]) == (12, "validation")
    assert (found["searches"], found["decoding"]) == ([GREEDY], "greedy")


def test_references_are_whole_words_as_translations_are(subject_of, monkeypatch, tmp_path):
    """Of files that are split into BPE pieces; the model reads the pieces."""
    for side, line in {"en": "a sto@@ ne", "de": "ein st@@ ei@@ n"}.items():
        (tmp_path / side).write_text(f"{line}\n" * 4)
    fields = {"data.validation_files": f"{tmp_path}/en,{tmp_path}/de"}
    fields |= {"tokenizer.name": "whitespace", "tokenizer.vocab_size": 40}
    read = []
    found = evaluate(subject_of, monkeypatch, lambda s: read.append(s) or "ein stein", **fields)
    assert set(read) == {"a sto@@ ne"}
    assert found["exact_match"] == 100
    assert found["samples"][0]["reference"] == "ein stein"
    assert found["bleu_tokenized_details"]["reference_length"] == 8
    assert found["copy_exact_match"] == 0


def test_a_config_may_ask_for_a_beam(subject_of, monkeypatch):
    fields = {"eval__beam_size": 4, "eval__length_penalty": 0.5}
    found = evaluate(subject_of, monkeypatch, reference, **fields)
    assert found["searches"] == [Beam(4, 0.5)]
    assert found["decoding"] == "beam 4, length penalty 0.5, early stopping"
    fields["eval__early_stopping"] = False
    found = evaluate(subject_of, monkeypatch, reference, **fields)
    assert found["searches"] == [Beam(4, 0.5, early_stopping=False)]
    assert found["decoding"] == "beam 4, length penalty 0.5"


def test_sums_over_sentences_make_the_scores(subject_of, monkeypatch):
    found = evaluate(subject_of, monkeypatch, half_right)
    sums = np.array([found["per_item"]["bleu"]], float).sum(1)
    assert bleu(sums)[0] == pytest.approx(found["bleu"])
    assert found["per_item"]["exact_match"] == [0, 100] * 6
    assert not [name for name in flat_numbers(found) if "per_item" in name]


def test_scores_are_those_of_sacrebleu(subject_of, monkeypatch):
    found = evaluate(subject_of, monkeypatch, half_right)
    sources = [f"{i} one two three four" for i in range(12)]
    references = [reference(source) for source in sources]
    hypotheses = [half_right(source) for source in sources]
    assert found["exact_match"] == pytest.approx(50)
    assert found["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(hypotheses, [references]).score
    assert 0 < found["bleu"] < 100
    assert "tok:13a" in found["bleu_signature"]
    assert "nc:6" in found["chrf_signature"]
    # Copying the source is scored whatever the model does.
    assert found["copy_exact_match"] == 0
    assert found["copy_bleu"] == sacrebleu.corpus_bleu(sources, [references]).score
    assert found["copy_chrf"] == sacrebleu.corpus_chrf(sources, [references]).score
    assert 0 < found["copy_chrf"] < 100


def loud(source):
    """Every third one in capital letters, all with a word too many."""
    right = reference(source)
    return f"{right if int(source.split()[0]) % 3 else right.upper()} ."


def test_what_explains_the_scores_is_that_of_sacrebleu(subject_of, monkeypatch):
    found = evaluate(subject_of, monkeypatch, loud)
    sources = [f"{i} one two three four" for i in range(12)]
    hypotheses, references = list(map(loud, sources)), list(map(reference, sources))
    assert found["ter"] == sacrebleu.corpus_ter(hypotheses, [references]).score
    lower = sacrebleu.corpus_bleu(hypotheses, [references], lowercase=True, tokenize="none")
    assert found["bleu_tokenized"] == lower.score > found["bleu"]
    assert found["bleu_tokenized_details"] == {
        "precisions": list(lower.precisions),
        "brevity_penalty": 1.0,
        "length": 12 * 6,
        "reference_length": 12 * 5,
    }
    assert found["bleu_details"]["precisions"][0] < lower.precisions[0]
    low, high = found["bleu_interval"]
    assert low < found["bleu"] < high
    assert "case:lc" in found["bleu_tokenized_signature"]
    assert "tok:none" in found["bleu_tokenized_signature"]
    assert "tok:tercom" in found["ter_signature"]


def test_the_interval_of_nothing_right_is_0(subject_of, monkeypatch):
    found = evaluate(subject_of, monkeypatch, lambda source: "falsch")
    assert (found["bleu"], found["bleu_interval"]) == (0, [0, 0])


def test_samples_stand_beside_their_references(subject_of, monkeypatch):
    samples = evaluate(subject_of, monkeypatch, half_right)["samples"]
    assert len(samples) == 8
    for sample in samples:
        assert sample["reference"] == reference(sample["source"])
        assert sample["hypothesis"] == half_right(sample["source"])


def test_a_subset_is_a_subset(subject_of, monkeypatch):
    found = evaluate(subject_of, monkeypatch, reference, eval__max_items=3)
    assert found["items"] == 3
    assert found["exact_match"] == 100
    assert len({sample["source"] for sample in found["samples"]}) == 3


def test_results_tell_by_which_sentences_they_are(subject_of, monkeypatch, tmp_path):
    """So that arms scored on others are refused, be it in the source alone or the reference."""
    for name, lines in {"en": "one", "two": "two", "de": "ein", "zwei": "zwei"}.items():
        (tmp_path / name).write_text(f"{lines}\n" * 4)

    def mark(source, target, translate=reference):
        files = {"data.validation_files": f"{tmp_path / source},{tmp_path / target}"}
        return evaluate(subject_of, monkeypatch, translate, **files)["fingerprint"]

    marks = [mark("en", "de"), mark("two", "de"), mark("en", "zwei")]
    assert len(set(marks)) == 3
    assert mark("en", "de", translate=lambda source: "falsch") == marks[0]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_the_sentences_are_those_of_the_split(subject_of, monkeypatch, tmp_path, split):
    for language in ("en", "de"):
        (tmp_path / language).write_text(f"only {language}\n")
    read = []
    fields = {"data.test_files": f"{tmp_path}/en,{tmp_path}/de", "eval.split": split}
    found = evaluate(subject_of, monkeypatch, lambda s: read.append(s) or s, **fields)
    assert (found["split"], found["items"]) == (split, 1 if split == "test" else 12)
    assert ("only en" in read) == (split == "test")


def test_sentences_too_long_to_train_on_are_translated_too(subject_of, monkeypatch, tmp_path):
    """A score over those that fit would be of an easier test set than the one that it names."""
    for language, word in (("en", "one"), ("de", "ein")):
        lines = [f"{i} {word}\n" for i in range(11)] + [f"11 {word}{' four' * 40}\n"]
        (tmp_path / f"long.{language}").write_text("".join(lines))
    files = ",".join(str(tmp_path / f"long.{language}") for language in ("en", "de"))
    fields = {"data.test_files": files, "eval.split": "test"}
    found = evaluate(subject_of, monkeypatch, lambda text: text.replace("one", "ein"), **fields)
    assert (found["split"], found["items"], found["exact_match"]) == ("test", 12, 100)


@pytest.mark.parametrize("name", ["translation", "causal_translation", "causal_lm"])
def test_texts_come_back_by_index_whatever_their_lengths(
    make_subject, tiny_data, tiny, monkeypatch, name
):
    """More texts than are decoded at once, of lengths from 1 to 37, by a model that echoes."""
    arm = {"model.architecture": "decoder", "objective.name": name}
    fields = {"causal_lm": {}, "translation": TRANSLATION}.get(name, TRANSLATION | arm)
    subject, _ = make_subject(tiny_data.config(**fields))
    seen, found, rows = [], {}, []

    def echo(model, prompt, source, *, sampling, indices, max_new, eos, pad):
        read = prompt if source is None else source
        seen.append(read.ids.shape)
        lengths = np.count_nonzero(read.segments, axis=1)
        real = np.asarray(prompt.segments).any(axis=1)
        found.update(zip(indices[real].tolist(), lengths[real].tolist(), strict=True))
        rows.append(int(real.sum()))
        return np.where(read.segments > 0, read.ids, pad)

    monkeypatch.setattr(decoding, "sample", echo)
    texts = [f"{i}" + "x" * (i * 7 % 34) for i in range(150)]
    writer = Writer(tiny(), subject.objective, subject.dataset.tokenizer, 5)
    pairs = list(writer.write({i: writer.read(text) for i, text in enumerate(texts)}))
    assert len(pairs) == 150
    times = 2 if name == "causal_lm" else 1  # a continuation comes after its beginning
    assert all(text == times * texts[i] for i, text in pairs)
    assert len({i for i, _ in pairs}) == 150
    assert rows == [64, 64, 22]  # what is left over of the last batch is empty
    added = 2 if name == "causal_translation" else 1  # <eos>, and <sep>; or <bos>
    # Each row has its index, from which follows what is drawn.
    assert found == {i: len(text) + added for i, text in enumerate(texts)}
    assert len(seen) == 3  # of 64 rows
    assert len(set(seen)) > 1
