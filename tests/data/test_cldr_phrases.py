import datetime
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from babel import Locale

from attn_jax.config import DataConfig
from attn_jax.data.sources import cldr_phrases, open_source
from attn_jax.errors import InputError

LANGUAGES = ("de", "fr", "ja", "ar", "zu", "pt_BR", "zh_Hant")


def draw(target="de", count=300, source="en"):
    return list(cldr_phrases.draw_pairs(Locale.parse(source), Locale.parse(target), count))


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    """The builder with a tenth of its pairs."""
    assert cldr_phrases.NUM_PAIRS == 26_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cldr_phrases, "NUM_PAIRS", 5200)
        directory = str(tmp_path_factory.mktemp("cldr"))
        return open_source(DataConfig(name="cldr_phrases", data_dir=directory))


def test_sizes_and_disjoint_sources(german):
    assert german.kind == "pair"
    splits = {name: list(german.split(name)) for name in ("train", "validation", "test")}
    sizes = {name: len(pairs) for name, pairs in splits.items()}
    assert sizes == {"train": 4800, "validation": 200, "test": 200}
    sources = Counter(source for pairs in splits.values() for source, _ in pairs)
    assert max(sources.values()) == 1
    assert max(len(side) for pairs in splits.values() for pair in pairs for side in pair) < 150


def test_words_of_the_test_split_were_seen_in_training(german):
    seen = {word for pair in german.split("train") for side in pair for word in side.split()}
    words = [
        word
        for pair in german.split("test")
        for side in pair
        for word in side.split()
        if not any(c.isdigit() for c in word)
    ]
    assert sum(word not in seen for word in words) < 0.02 * len(words)


def test_pairs_are_the_same_on_every_run():
    assert draw() == draw()
    assert [s for s, _ in draw("fr")] == [s for s, _ in draw("de")]


def test_a_source_has_one_target():
    """Not only among the pairs kept: whatever is drawn again is rendered the same."""
    random, english, german = Random("ambiguity"), Locale("en"), Locale("de")
    targets = {}
    repeated = 0
    for _ in range(8000):
        phrase = cldr_phrases._phrase(random)
        source, target = phrase(english), phrase(german)
        repeated += source in targets
        assert targets.setdefault(source, target) == target
    assert repeated > 50  # else this test would show nothing


@pytest.mark.parametrize("language", LANGUAGES)
def test_other_languages(language):
    pairs = draw(language, 400)
    assert len({source for source, _ in pairs}) == 400
    assert all(target.strip() for _, target in pairs)
    assert sum(source == target for source, target in pairs) < 60


class Fixed(Random):
    """Always draws the first choice, the middle of a range and the smallest integer."""

    def choice(self, options):
        return options[0]

    def randrange(self, stop):
        return stop // 2

    def randint(self, low, high):
        return low

    def sample(self, population, k):
        return population[-k:]


GOLDEN = {
    "_date": ("Saturday, January 1, 2000", "Samstag, 1. Januar 2000", "samedi 1 janvier 2000"),
    "_date_time": (
        "January 1, 2000, 12:30\u202fPM",
        "1. Januar 2000, 12:30",
        "1 janvier 2000, 12:30",
    ),
    "_date_interval": (
        "Jan 1\u2009\u2013\u20092, 2000",
        "1.\u20132. Jan. 2000",
        "1\u20132 janv. 2000",
    ),
    "_weekday_time": ("Sat 12:30", "Sa., 12:30", "sam. 12:30"),
    "_month": ("January 2000", "Januar 2000", "janvier 2000"),
    "_age": ("1 minute ago", "vor 1 Minute", "il y a 1 minute"),
    "_money": ("AED1.00", "1,00\xa0AED", "1,00\xa0AED"),
    "_rate": ("1 kilogram per day", "1 Kilogramm pro Tag", "1\xa0kilogramme par jour"),
    "_duration": ("1 hour and 1 minute", "1 Stunde und 1 Minute", "1\xa0heure et 1 minute"),
}


def test_golden_phrases():
    locales = [Locale(name) for name in ("en", "de", "fr")]
    for name, expected in GOLDEN.items():
        phrase = getattr(cldr_phrases, name)(Fixed(0))
        assert tuple(phrase(locale) for locale in locales) == expected
    names = cldr_phrases._NAMES[0](Fixed(0))
    assert [names(locale) for locale in locales] == [
        "Zambia and Zimbabwe",
        "Sambia und Simbabwe",
        "Zambie et Zimbabwe",
    ]


@pytest.mark.parametrize("field", ["source_language", "target_language"])
@pytest.mark.parametrize(("language", "hint"), [("pt_BRR", "'pt_BR'"), ("english", ""), ("", "")])
def test_an_unknown_language(tmp_path, field, language, hint):
    config = DataConfig(name="cldr_phrases", data_dir=str(tmp_path), **{field: language})
    message = rf"data\.{field} = '{language}': not a language"
    with pytest.raises(InputError, match=message) as caught:
        open_source(config)
    assert hint in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_twice_the_same_language(tmp_path):
    config = DataConfig(name="cldr_phrases", data_dir=str(tmp_path), target_language="en")
    with pytest.raises(InputError, match="the same as source_language"):
        open_source(config)


def test_languages_and_their_spelling(tmp_path, monkeypatch):
    monkeypatch.setattr(cldr_phrases, "NUM_PAIRS", 52)
    config = DataConfig(name="cldr_phrases", data_dir=str(tmp_path), source_language="fr")
    configs = [replace(config, target_language=target) for target in ("ja", "pt_BR", "pt-BR")]
    japanese, brazilian, again = map(open_source, configs)
    assert brazilian.fingerprint == again.fingerprint != japanese.fingerprint
    assert japanese.split("test")[0][0] == brazilian.split("test")[0][0]


def test_dates_cover_a_century():
    days = [cldr_phrases._day(Random(i)) for i in range(300)]
    assert min(days) >= datetime.date(1950, 1, 1)
    assert max(days) < datetime.date(2050, 1, 1)
