"""Minimal pairs: equal scores are wrong, and accuracies are means over paradigms."""

import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import ROOT

from attn_jax.data.tokenizers import ByteTokenizer
from attn_jax.errors import InputError
from attn_jax.evaluation.evaluators import Evaluation
from attn_jax.evaluation.minimal_pairs import MinimalPairs, read_paradigms
from attn_jax.evaluation.scorers import Scores, TextScorer

PAIRS = [  # paradigm, phenomenon, good, bad; of equal lengths
    ("number", "agreement", "two six", "six two"),
    ("number", "agreement", "one six", "six one"),
    ("person", "agreement", "one ten", "ten one"),
    ("island", "islands", "one two", "two one"),
    ("island", "islands", "two ten", "ten two"),
    ("island", "islands", "six ten", "ten six"),
]


def line_of(paradigm, phenomenon, good, bad):
    about = {"UID": paradigm, "linguistics_term": phenomenon, "field": "syntax"}
    return json.dumps(about | {"sentence_good": good, "sentence_bad": bad})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("\n".join(line_of(*pair) for pair in PAIRS))
    return path


@pytest.fixture(scope="module")
def make(tiny_data, make_subject, file):
    """Returns a function that makes the evaluator, and random parameters."""

    def make(**changes):
        fields = {"eval.evaluators": "minimal_pairs", "eval.minimal_pairs": str(file)} | changes
        subject, params = make_subject(tiny_data.config(**fields))
        return MinimalPairs(subject), params

    return make


def plant(monkeypatch, score):
    """Lets `score` say what a text, as it is written, is worth."""

    def planted(self, params, items):
        texts = [ByteTokenizer().decode(item.target) for item in items]
        return [Scores(np.array([score(text)]), np.array([True])) for text in texts]

    monkeypatch.setattr(TextScorer, "score", planted)


def test_a_constant_score_is_never_right(make, monkeypatch):
    """T18."""
    plant(monkeypatch, lambda text: -7.0)
    found = make()[0].run({})["causal"]
    assert (found["accuracy"], found["ties"]) == (0, len(PAIRS))
    assert set(found["paradigms"].values()) == {0}


def test_a_model_without_an_opinion_is_never_right(make):
    evaluator, params = make()
    found = evaluator.run(jax.tree.map(jnp.zeros_like, params))["causal"]
    assert (found["accuracy"], found["ties"]) == (0, len(PAIRS))


def test_the_more_probable_sentence_counts(make, monkeypatch):
    good = {pair[2] for pair in PAIRS}
    plant(monkeypatch, lambda text: -1.0 - (text not in good))
    found = make()[0].run({})["causal"]
    assert (found["accuracy"], found["ties"], found["accuracy_stderr"]) == (1, 0, 0)
    plant(monkeypatch, lambda text: -1.0 - (text in good))
    assert make()[0].run({})["causal"]["accuracy"] == 0


def test_accuracies_are_means_over_paradigms(make, monkeypatch):
    right = {"two six", "one ten", "two ten", "six ten"}  # 1 of 2, 1 of 1, 2 of 3
    plant(monkeypatch, lambda text: float(text in right))
    evaluator, _ = make()
    results = evaluator.run({})
    found = results["causal"]
    assert found["paradigms"] == pytest.approx({"island": 2 / 3, "number": 1 / 2, "person": 1})
    assert found["phenomena"] == pytest.approx({"agreement": 3 / 4, "islands": 2 / 3})
    assert found["fields"] == pytest.approx({"syntax": (2 / 3 + 1 / 2 + 1) / 3})
    assert found["accuracy"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    spread = (2 / 9 / 3 + 1 / 4 / 2) ** 0.5 / 3
    assert found["accuracy_stderr"] == pytest.approx(spread)
    assert found["ties"] == 2
    assert (results["items"], results["methods"]) == (6, ["causal"])


def test_both_masks_are_named_and_scored(make):
    evaluator, params = make(**{"eval.scoring": "own,pll,causal"})
    found = evaluator.run(params)
    assert found["methods"] == ["causal", "pll"]  # own is causal here, and scored once
    assert [found[method]["mask"] for method in found["methods"]] == ["causal", "bidirectional"]
    assert len(found["fingerprint"]) == 16
    assert not {"perplexity", "pseudo_perplexity"} & {name for name, _ in walk(found)}
    curve = evaluator.curve(params)
    assert curve == {m: {"accuracy": found[m]["accuracy"]} for m in ("causal", "pll")}
    # By hand: the library's own scores, compared one by one.
    texts = [text for pair in PAIRS for text in pair[2:]]
    for scorer in evaluator._scorers:
        totals = [s.total for s in scorer.score(params, [scorer.read("", text) for text in texts])]
        right = [a > b for a, b in zip(totals[::2], totals[1::2], strict=True)]
        shares = [np.mean(right[:2]), right[2], np.mean(right[3:])]
        assert found[scorer.method]["accuracy"] == pytest.approx(np.mean(shares))


def walk(tree):
    for name, value in tree.items():
        yield name, value
        if isinstance(value, dict):
            yield from walk(value)


def test_max_items_caps_each_paradigm(make):
    results = make(**{"eval.max_items": 1})[0]._paradigms
    assert [len(paradigm.pairs) for paradigm in results] == [1, 1, 1]


def test_a_folder_and_a_zip_hold_the_same(file, tmp_path):
    expected = read_paradigms(str(file))
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        archive.writestr("__MACOSX/data/._number.jsonl", b"\x00\x05\x16\x07")
        for name in ("person", "number", "island"):
            lines = [line_of(*pair) for pair in PAIRS if pair[0] == name]
            archive.writestr(f"data/{name}.jsonl", "\n".join(lines))
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    assert read_paradigms(str(tmp_path / "pairs.zip")) == expected
    assert read_paradigms(str(tmp_path)) == expected


def test_without_a_uid_the_file_s_name_counts(tmp_path):
    line = '{"sentence_good": "a b", "sentence_bad": "b a", "linguistics_term": null}\n'
    for name in ("mine.v1", "mine.v2"):
        (tmp_path / f"{name}.jsonl").write_text(line * 2)
    first, second = read_paradigms(str(tmp_path))
    assert (first.name, second.name) == ("mine.v1", "mine.v2")
    assert first.pairs == [("a b", "b a")] * 2
    assert (first.phenomenon, first.field) == ("", "")


def test_results_tell_by_which_pairs_they_are(make, tmp_path):
    """So that arms scored on others, or on the same in other paradigms, are refused."""
    other, regrouped = tmp_path / "other.jsonl", tmp_path / "regrouped.jsonl"
    other.write_text("\n".join(line_of(*pair) for pair in PAIRS[1:]))
    regrouped.write_text("\n".join(line_of("one", *pair[1:]) for pair in PAIRS))
    found = [make()[0]._fingerprint, make()[0]._fingerprint]
    found += [make(**{"eval.minimal_pairs": str(x)})[0]._fingerprint for x in (other, regrouped)]
    assert (found[0] == found[1], len(set(found))) == (True, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"sentence_good": "a"}', "pairs.jsonl:2: sentence_bad = None: expected a text"),
        ('{"sentence_good": " ", "sentence_bad": "b"}', "sentence_good = ' '"),
        ("[1]", "pairs.jsonl:2: expected a JSON object, not list"),
        ("{", "pairs.jsonl:2: not valid JSON"),
        ("[" * 100_000, "pairs.jsonl:2: not valid JSON"),
        (r'{"sentence_good": "a \ud800", "sentence_bad": "b"}', "holds half of a surrogate pair"),
    ],
    ids=range(6),
)
def test_wrong_lines_are_named(tmp_path, text, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text(line_of(*PAIRS[0]) + "\n" + text)
    with pytest.raises(InputError) as caught:
        read_paradigms(str(path))
    assert message in str(caught.value)


def test_what_cannot_be_evaluated_is_refused(make, tmp_path, tiny_data):
    for value, message in (
        (str(tmp_path / "none"), "no such file"),
        (str(tmp_path), "holds no .jsonl file"),
    ):
        with pytest.raises(InputError, match=rf"eval\.minimal_pairs = '{value}': {message}"):
            make(**{"eval.minimal_pairs": value})
    (tmp_path / "bad.zip").write_text("no archive")
    with pytest.raises(InputError, match=r"cannot be unpacked: File is not a zip file"):
        make(**{"eval.minimal_pairs": str(tmp_path / "bad.zip")})
    with zipfile.ZipFile(tmp_path / "bad.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pairs.jsonl", line_of(*PAIRS[0]) * 9)
    content = bytearray((tmp_path / "bad.zip").read_bytes())
    content[50:60] = b"\xff" * 10  # in the compressed part
    (tmp_path / "bad.zip").write_bytes(content)
    with pytest.raises(InputError, match="cannot be unpacked"):
        make(**{"eval.minimal_pairs": str(tmp_path / "bad.zip")})
    with pytest.raises(InputError, match=r"eval\.minimal_pairs is empty"):
        make(**{"eval.minimal_pairs": ""})
    with pytest.raises(InputError, match=r"unknown method 'pl', .* did you mean 'pll'"):
        make(**{"eval.scoring": "causal,pl"})
    long = {"model.positions": "learned", "model.max_length": 16}
    (tmp_path / "long.jsonl").write_text(line_of("x", "y", "a b", "a long sentence"))
    with pytest.raises(InputError, match=r"'a long sentence'.*: 17 tokens, and the model reads 16"):
        make(**long, **{"eval.minimal_pairs": str(tmp_path / "long.jsonl")})


def test_it_is_one_of_the_evaluators(make, tiny_data, file, make_subject):
    config = tiny_data.config(
        eval__evaluators="minimal_pairs", eval__curve="minimal_pairs", eval__minimal_pairs=str(file)
    )
    subject, params = make_subject(config)
    evaluation = Evaluation(config, subject.dataset, subject.objective, subject.graph)
    found = evaluation.run(params)["minimal_pairs"]
    numbers = evaluation.curve(params)
    assert numbers == {"minimal_pairs/causal/accuracy": found["causal"]["accuracy"]}


@pytest.mark.shared_data
def test_blimp_has_67_paradigms_of_1000_pairs():
    path = ROOT.parent / "shared/data/blimp/BLiMP.zip"
    if not path.exists():
        pytest.skip("BLiMP.zip is not beside the checkout, in shared/data/blimp")
    found = read_paradigms(str(path))
    assert len(found) == 67
    assert {len(paradigm.pairs) for paradigm in found} == {1000}
    assert len({paradigm.phenomenon for paradigm in found}) == 13
