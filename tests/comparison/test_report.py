import re
from copy import deepcopy
from html.parser import HTMLParser

import pytest

from attn_jax.comparison import figures, report
from attn_jax.comparison.collect import collect
from attn_jax.comparison.report import write_report
from attn_jax.comparison.wording import equal, findings, number, overtake, p_value, spread
from attn_jax.files import read_json

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags are balanced; collects the text of tables, attributes and tags."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.attributes, self.rows = [], [], [], []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data.strip()}".strip()


def render(tmp_path, studies):
    path = tmp_path / "report.html"
    write_report(path, studies)
    assert not list(tmp_path.glob("*.partial"))
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def html(tmp_path_factory, collected):
    return render(tmp_path_factory.mktemp("report"), collected)


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_report_is_complete_balanced_and_small(html, page):
    # Of a study: two charts, four budgets and the attention of three arms.
    assert page.tags.count("svg") == 2 * (2 + 4 + 3)
    assert len(html) < 1_000_000
    for heading in (
        "Results",
        "Verdicts",
        "Quality against the budgets",
        "Learning curves",
        "Every model under every mask",
        "Budgets",
        "Declared differences",
        "Sample predictions",
        "Sample translations",
        "Where they look",
        "How to reproduce",
    ):
        assert f"<h3>{heading}</h3>" in html


def test_report_fetches_nothing(html, page):
    for name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "data", "srcset"):
            assert value.startswith(("#", "data:image/png;base64,")), (name, value)
        elif not name.startswith("xmlns"):
            assert "://" not in (value or "")
    assert not {"link", "iframe", "img", "object"} & set(page.tags)
    assert page.tags.count("script") == 1  # our own
    assert "@import" not in html
    assert "fetch(" not in html
    assert set(re.findall(r"url\((.)", html)) == {"#"}


def test_ids_are_unique(page):
    ids = [value for name, value in page.attributes if name == "id"]
    shared = {i for i in ids if ids.count(i) > 1}
    # Equal clip paths and equal heat maps may repeat, since they are named by their content.
    assert all(re.fullmatch(r"(p|image)[0-9a-f]{10}", i) for i in shared)


def test_numbers_equal_the_collected_ones(page, collected):
    rows = page.rows
    study = collected["masking"]
    own = study["metrics"]["encoder"]["shared_positions/own_bits"]
    results = next(row for row in rows if row[0] == "encoder" and row[-1] == "both sides")
    assert results[1] == f"{own['mean']:.2f} ± {own['sd']:.2f}"
    assert results[3] == "–"  # a masked language model has no perplexity
    pseudo = study["metrics"]["encoder"]["loss/pseudo_perplexity"]
    assert results[4] == f"{pseudo['mean']:.2f} ± {pseudo['sd']:.2f}"
    masks = study["masks"]["encoder"]
    assert [
        "encoder",
        *(f"{masks[m]['mean']:.2f} ± {masks[m]['sd']:.2f}" for m in ("causal", "prefix")),
        results[1],
    ] in rows


def test_seeds_and_commands_are_printed(html, page):
    assert ["seeds", "0, 1"] in page.rows
    assert "<pre>python -m experiments.compare --config=configs/compare_masking.py</pre>" in html


def test_all_budgets_are_in_the_table(page):
    numbers = ["1,049,088", "793,088", "1.56e+13", "2,400,000", "720,000", "102"]
    assert ["encoder", *numbers] in page.rows


def test_perplexity_and_pseudo_perplexity_have_columns_of_their_own(page):
    heads = [row for row in page.rows if "perplexity" in row]
    assert heads[0][-3:] == ["perplexity", "pseudo-perplexity", "predicts from"]
    assert "pseudo-perplexity" not in heads[1]  # no arm of the translation study has one


def test_text_is_escaped(tmp_path, collected):
    collected = deepcopy(collected)
    collected["masking"]["question"] = "<script>alert('question')</script>"
    collected["masking"]["examples"]["predictions"][0]["left"] = "<script>left</script>"
    attention = collected["masking"]["examples"]["attention"]
    attention["encoder"]["pieces"][0] = "<script>"
    for found in (attention, collected["translation"]["examples"]["attention"]):
        for arm in ("decoder", "prefix", "causal", "encoder-decoder"):  # slow to draw
            found.pop(arm, None)
    html = render(tmp_path, collected)
    assert html.count("<script") == 1  # our own
    assert "&lt;script&gt;alert(&#39;Äpfel&#39;)&lt;/script&gt;" in html  # planted in a translation
    Page(html)


def test_wrong_translations_and_right_guesses_are_marked(html):
    assert re.search(r'class="text right">Dienstag, 5. März 2024<', html)
    assert re.search(r'class="text wrong">Dienstag, 5. Mai 2024<', html)
    assert re.search(r'class="guess right">light <small>61 %<', html)
    assert re.search(r'class="guess">water <small>12 %<', html)
    assert "<mark>shepherd</mark>" in html


def test_one_seed_earns_no_claim(tmp_path, masking_runs):
    found = collect([run for run in masking_runs if run.seed == 0])
    found["examples"]["attention"] = {}  # slow to draw
    claim = "That is one seed, no claim: the encoder is ahead of the decoder in bits per token"
    assert any(sentence.startswith(claim) for sentence in findings(found))
    assert all(row["outcome"] == "one seed" for row in found["differences"])
    html = render(tmp_path, {"masking": found})
    assert "One seed, no claim" in html
    shown = html[: html.index("<script>")]
    for claim in ("±", "beats", "on par", "Holm", "Verdicts"):
        assert claim not in shown


def test_verdicts_are_printed_as_collected(html, collected):
    for study in collected.values():
        assert study["differences"]
        for row in study["differences"]:
            assert f"{row['verdict']}</li>" in html
    assert "one seed, no claim" not in html
    assert "Loss and perplexity are of the target side, in every arm." in html


def test_the_tests_behind_the_verdicts_are_printed(page, collected):
    row = collected["masking"]["differences"][0]
    shown = next(r for r in page.rows if r[0] == "bits per token, own view" and r[1] == row["a"])
    assert shown[2] == row["b"]
    assert shown[3] == number(row["mean"], 3)
    assert shown[4] == f"{number(row['low'], 3)} to {number(row['high'], 3)}"
    assert shown[5:8] == [p_value(row[test]) for test in ("p", "holm", "sign_flip_p")]
    assert shown[7] == "0.50"  # two seeds cannot say more
    assert shown[8] == "–"  # nor how large an effect is
    assert shown[10] == f"{number(row['text']['low'], 3)} to {number(row['text']['high'], 3)}"


def test_three_seeds_have_an_effect_and_a_detectable_difference(tmp_path, three_seeds):
    study = deepcopy(three_seeds)
    for place, row in enumerate(study["differences"]):
        row["text"]["p"] = 0.2 + 0.1 * place
    page = Page(render(tmp_path, {"masking": study}))
    heads = next(row for row in page.rows if "detectable" in row)
    for row in study["differences"]:
        shown = next(r for r in page.rows if len(r) == 12 and r[1:3] == [row["a"], row["b"]])
        cells = dict(zip(heads, shown, strict=True))
        assert cells["g"] == number(row["effect"]["g"], 1)
        assert cells["detectable"] == number(row["detectable"], 3)
        assert cells["this text, p"] == p_value(row["text"]["p"])


def test_only_what_was_checked_is_said_to_be_equal(tmp_path, three_seeds):
    said = "every other field of their configs, in their data and in their tokenizer; this"
    assert said in render(tmp_path, {"masking": three_seeds})
    declared = three_seeds["declared"] | {"data.name": {}}
    found = equal(three_seeds | {"declared": declared})
    assert "configs and in their tokenizer; this" in found
    found = equal(three_seeds | {"declared": declared | {"tokenizer.name": {}}})
    assert "every other field of their configs; this" in found
    found = equal(three_seeds | {"sweep": {"fields": {"model.dropout": [0, 0.1]}}})
    assert "configs but for those that they were tuned in (model.dropout), in their data" in found


def test_losses_that_are_compared_are_not_said_to_be_incomparable(tmp_path, three_seeds):
    never = "it compares seeds of one arm, not arms"
    assert never in render(tmp_path, {"masking": three_seeds})
    rows = [x | {"metric": "loss/loss"} for x in three_seeds["differences"]]
    html = render(tmp_path, {"masking": three_seeds | {"differences": rows}})
    assert "<h4>loss, nats</h4>" in html
    assert never not in html


def test_numbers_that_one_would_miss_are_told_below_the_results(tmp_path, three_seeds):
    lost = {"arm": "encoder", "metric": "probe/causal/accuracy", "diverged": 2, "seeds": 3}
    html = render(tmp_path, {"masking": three_seeds | {"diverged": [lost]}})
    told = "Probe, causal: 2 of 3 seeds of the encoder diverged, so it has no number."
    assert html.index("<h3>Results</h3>") < html.index(told) < html.index("<h3>Verdicts</h3>")


def test_fewer_bits_are_greener():
    bits = {"causal": {"mean": 2.0}, "prefix": {"mean": 3.0}, "bidirectional": {"mean": 4.0}}
    shades = report._shades({"a": bits})["a"]
    assert shades == {"causal": "#a6d8b5", "prefix": "#d2ecda", "bidirectional": "#ffffff"}


def test_phenomena_are_drawn_where_there_are_minimal_pairs(tmp_path, masking_runs, edit_json):
    for run in masking_runs:
        path = run.directory / "eval/1200.json"
        results = read_json(path)["results"]
        scores = {"accuracy": 0.7, "phenomena": {"agreement": 0.9, "negative_polarity": 0.5}}
        edit_json(path, results={"loss": results["loss"], "minimal_pairs": {"within_word": scores}})
    found = collect(masking_runs)
    html = render(tmp_path, {"masking": found})
    assert "<h3>Minimal pairs by phenomenon</h3>" in html
    assert "negative polarity" in html
    assert 'aria-label="accuracy, within word: decoder, encoder, prefix"' in html
    assert "minimal pairs, within word" in html
    assert {x["metric"] for x in found["differences"]} == {"minimal_pairs/within_word/accuracy"}
    Page(html)


def test_quality_is_drawn_against_what_was_spent(collected):
    study = deepcopy(collected["masking"])
    drawn = {}

    def record(by_arm, palette, label, baselines=None, against="updates"):
        drawn[against] = by_arm
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "curves", record)
        report._against_budgets(study, report._columns(study), {})
    assert list(drawn) == [
        "parameters",
        "training FLOPs",
        "tokens seen",
        "loss-bearing tokens",
    ]
    budgets = study["budgets"]["encoder"]
    assert drawn["parameters"]["encoder"]["steps"] == [budgets["parameters"]["mean"]]
    steps = drawn["loss-bearing tokens"]["encoder"]["steps"]
    assert steps[-1] == budgets["loss_bearing_tokens"]["mean"]
    assert steps[0] == pytest.approx(steps[-1] * 200 / 1200)


def test_findings_begin_with_the_bits_of_every_arm(collected):
    first, *rest = findings(collected["masking"])
    assert first == (
        "Reading only the left side the decoder needs 5.14 bits per held-out token; "
        "with both sides in view the encoder needs 5.12; "
        "reading the left side both ways the prefix needs 5.36; "
        "a trigram model needs 4.85; a unigram model needs 8.62."
    )
    verdict = collected["masking"]["differences"][0]["verdict"]
    told = "one of them sees both sides, so fewer bits do not make a better model of the text"
    assert f"Bits per token, own view: {verdict}; {told}." in rest
    masks = collected["masking"]["masks"]
    assert (
        "Under the opposite mask the bits are: "
        f"the decoder {masks['decoder']['bidirectional']['mean']:.2f} (both sides) and "
        f"the encoder {masks['encoder']['causal']['mean']:.2f} (left side only)."
    ) in rest
    found = collected["translation"]["metrics"]["encoder-decoder"]
    exact, bleu = (spread(found[f"translation/{x}"], 1) for x in ("exact_match", "bleu"))
    assert "±" in exact
    told = f"{exact} % for the encoder-decoder (BLEU {bleu})"
    assert told in findings(collected["translation"])[0]


def test_bits_from_the_same_side_need_no_caveat(collected):
    study = deepcopy(collected["masking"])
    study["metrics"]["encoder"]["shared_positions/own_bits"]["mean"] = 99  # the other two are best
    (row,) = [x for x in study["differences"] if {x["a"], x["b"]} == {"decoder", "prefix"}]
    assert f"Bits per token, own view: {row['verdict']}." in findings(study)


def test_where_more_is_better_the_summary_compares_the_two_highest(collected):
    study = collected["translation"]
    bleu = {arm: own["translation/bleu"]["mean"] for arm, own in study["metrics"].items()}
    assert sorted(bleu, key=bleu.get) == ["causal", "prefix", "encoder-decoder"]
    (row,) = [
        x
        for x in study["differences"]
        if (x["metric"], {x["a"], x["b"]}) == ("translation/bleu", {"prefix", "encoder-decoder"})
    ]
    assert f"BLEU: {row['verdict']}." in findings(study)


def test_an_overtake_is_found_only_between_arms_that_are_told_apart(collected):
    study = deepcopy(collected["masking"])
    found = "The encoder first needs fewer bits than the decoder at step 1,200."
    row = study["differences"][0]
    assert (row["a"], row["b"], row["outcome"]) == ("decoder", "encoder", "undecided")
    assert found not in findings(study)
    row["outcome"] = "ahead"
    assert found in findings(study)


def test_missing_evaluators_leave_their_section_out(tmp_path, masking_runs, edit_json):
    for run in masking_runs:
        loss = {"loss": {"items": 10, "loss": 3.0 + run.seed, "perplexity": 20.0}}
        edit_json(run.directory / "eval/1200.json", results=loss)
        (run.directory / "metrics.jsonl").write_text("")
    found = collect(masking_runs)
    html = render(tmp_path, {"masking": found})
    Page(html)
    for heading in ("Every model", "Learning curves", "Sample", "Where they look", "Differences,"):
        assert heading not in html
    assert "3.500 ± 0.707" in html
    assert findings(found)[0].startswith("The loss in nats, of each arm's own objective, is 3.500")


def test_an_arm_has_one_color_in_all_studies(html):
    colors = dict(re.findall(r'style="--color: (#\w+)">(\w[\w-]*)<', html))
    by_arm = re.findall(r'style="--color: (#\w+)">(\w[\w-]*)<', html)
    assert {arm for _, arm in by_arm} == {
        "decoder",
        "encoder",
        "prefix",
        "encoder-decoder",
        "causal",
    }
    assert len(colors) == 5
    assert len(set(by_arm)) == 5
    assert all(f"stroke: {color}" in html for color in colors)


def test_figures_survive_odd_names():
    svg = figures.attention({"pieces": ["$x", " ", '"&'], "layers": [[[1.0, 0, 0]] * 3]}, 'a"<b')
    Page(svg)
    assert "$x" in svg
    assert 'aria-label="a&quot;&lt;b"' in svg


def test_numbers_are_printed_for_readers():
    assert number(1234.5, 1) == "1,234.5"
    assert number(-0.25, 2) == "−0.25"
    assert number(-0.001, 2) == "0.00"
    assert spread({"mean": 5.0, "sd": None}, 2) == "5.00"


def test_an_arm_that_never_gets_ahead_is_said_to():
    told = overtake({"wide": "encoder", "narrow": "decoder", "step": None})
    assert told == "At no evaluated step does the encoder need fewer bits than the decoder."
