"""Exact translation pairs without limit, rendered from the locale data of Unicode CLDR by Babel.

A phrase is drawn once and rendered in both languages, so a target is a function of its source.
Only what CLDR has for every language is used: names, numbers, dates, units, and the patterns
that join them.
"""

import datetime
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import babel
import tensorflow_datasets as tfds
from babel import Locale, dates, lists, localedata, numbers, units

from attn_jax.config import DataConfig
from attn_jax.data.sources.builder import TextBuilder
from attn_jax.data.sources.cldr_names import CURRENCIES, LANGUAGES, TERRITORIES, UNITS
from attn_jax.data.sources.source import Source, data_dir
from attn_jax.errors import InputError, nearest

NUM_PAIRS = 26_000  # of which every 26th is for validation and every 26th for test

Phrase = Callable[[Locale], str]  # renders what was drawn, in a language
Draw = Callable[[Random], Phrase]

_RATES = (
    ("mass-kilogram", "duration-day"),
    ("volume-liter", "duration-hour"),
    ("length-meter", "duration-second"),
    ("digital-megabyte", "duration-second"),
    ("length-kilometer", "duration-week"),
)
# Of each unit of time: the most that `format_timedelta` leaves in that unit.
_AGES = {"minute": 50, "hour": 20, "day": 5, "week": 3, "month": 10, "year": 60}
_DAYS = {"minute": 1 / 1440, "hour": 1 / 24, "day": 1, "week": 7, "month": 30.5, "year": 365}


class CldrPhrases(TextBuilder):
    """Dates, times, amounts, units, durations and lists in two languages."""

    VERSION = tfds.core.Version("1.0.0")
    FIELDS = ("source", "target")

    def __init__(self, source: str, target: str, directory: Path) -> None:
        self._locales = Locale.parse(source), Locale.parse(target)
        # Another release of Babel has other locale data.
        super().__init__(f"{source}-{target}-babel-{babel.__version__}", directory)

    def records(self) -> dict[str, list[tuple[str, str]]]:
        """Returns 24,000 pairs for training and 1,000 each for validation and test."""
        pairs = list(draw_pairs(*self._locales, NUM_PAIRS))
        train = [pair for i, pair in enumerate(pairs) if i % 26 < 24]
        return {"train": train, "validation": pairs[24::26], "test": pairs[25::26]}


def open_source(config: DataConfig) -> Source:
    """Opens phrase pairs of any two CLDR languages.

    Raises:
      InputError: for a language that CLDR does not have, or twice the same.
    """
    source = _known("source_language", config.source_language)
    target = _known("target_language", config.target_language)
    if source == target:
        raise InputError(
            f"data.target_language = {config.target_language!r}: the same as source_language"
        )
    return CldrPhrases(source, target, data_dir(config)).open()


def draw_pairs(source: Locale, target: Locale, count: int) -> Iterator[tuple[str, str]]:
    """Yields `count` pairs with different sources, the same on every machine."""
    random = Random("cldr_phrases")
    seen: set[str] = set()
    while len(seen) < count:
        phrase = _phrase(random)
        text = phrase(source)
        if text not in seen:
            seen.add(text)
            yield text, phrase(target)


def _known(field: str, language: str) -> str:
    """Returns the identifier of a CLDR locale in Babel's spelling."""
    valid = [name for name in localedata.locale_identifiers() if name != "root"]
    name = language.replace("-", "_")
    if name not in valid:
        hint = nearest(name, valid)
        raise InputError(f"data.{field} = {language!r}: not a language of Unicode CLDR{hint}")
    return name


def _phrase(random: Random) -> Phrase:
    pattern, parts = random.choice(_PATTERNS)
    drawn = [random.choice(part)(random) for part in parts]
    return lambda locale: pattern.format(*[render(locale) for render in drawn])


def _date(random: Random) -> Phrase:
    day = _day(random)
    # "medium" is left out: in English it looks like "long", in other languages it does not.
    style = random.choice(("full", "long", "short"))
    return lambda locale: dates.format_date(day, style, locale=locale)


def _date_time(random: Random) -> Phrase:
    day, time = _day(random), _time(random)

    def render(locale: Locale) -> str:
        pattern = dates.get_datetime_format("long", locale=locale).replace("'", "")
        return pattern.format(
            dates.format_time(time, "short", locale=locale),
            dates.format_date(day, "long", locale=locale),
        )

    return render


def _date_interval(random: Random) -> Phrase:
    start = _day(random)
    stop = start + datetime.timedelta(days=random.randint(1, 90))
    return lambda locale: dates.format_interval(start, stop, "yMMMd", locale=locale)


def _time_interval(random: Random) -> Phrase:
    start, stop = sorted((_time(random), _time(random)))
    return lambda locale: dates.format_interval(start, stop, "Hm", locale=locale)


def _weekday_time(random: Random) -> Phrase:
    when = datetime.datetime.combine(_day(random), _time(random))
    return lambda locale: dates.format_skeleton("EHm", when, locale=locale)


def _month(random: Random) -> Phrase:
    day = _day(random)
    return lambda locale: dates.format_skeleton("yMMMM", day, locale=locale)


def _age(random: Random) -> Phrase:
    unit = random.choice(list(_AGES))
    count = random.randint(1, _AGES[unit]) * random.choice((-1, 1))
    delta = datetime.timedelta(days=count * _DAYS[unit])
    return lambda locale: dates.format_timedelta(delta, add_direction=True, locale=locale)


def _money(random: Random) -> Phrase:
    currency = random.choice(CURRENCIES)
    # No yen has sen: rounding here would leave the plural of what is not shown.
    amount = _number(random, decimals=numbers.get_currency_precision(currency))
    form = random.choice(("standard", "name"))
    return lambda locale: numbers.format_currency(amount, currency, locale=locale, format_type=form)


def _quantity(random: Random) -> Phrase:
    unit = random.choice(UNITS)
    amount = _number(random, decimals=1)
    return lambda locale: units.format_unit(amount, unit, locale=locale)


def _rate(random: Random) -> Phrase:
    unit, per = random.choice(_RATES)
    amount = _number(random, decimals=0)
    return lambda locale: units.format_compound_unit(
        amount, unit, denominator_unit=per, locale=locale
    )


def _duration(random: Random) -> Phrase:
    first = random.randrange(4)
    names = ("week", "day", "hour", "minute", "second")[first : first + 2]
    counts = [random.randint(1, 23) for _ in names]
    return lambda locale: lists.format_list(
        [
            units.format_unit(count, f"duration-{name}", locale=locale)
            for count, name in zip(counts, names, strict=True)
        ],
        locale=locale,
    )


def _name_in(table: str, codes: Sequence[str]) -> Draw:
    """Returns what draws a name; `table` is an attribute of a locale."""

    def name(random: Random) -> Phrase:
        code = random.choice(codes)
        return lambda locale: getattr(locale, table).get(code, code)

    return name


def _list_in(table: str, codes: Sequence[str]) -> Draw:
    """Returns what draws "A and B", "A, B, or C" and so on."""

    def names(random: Random) -> Phrase:
        drawn = random.sample(codes, random.randint(2, 3))
        style = random.choice(("standard", "or"))
        return lambda locale: lists.format_list(
            [getattr(locale, table).get(code, code) for code in drawn], style=style, locale=locale
        )

    return names


def _day(random: Random) -> datetime.date:
    return datetime.date(1950, 1, 1) + datetime.timedelta(days=random.randrange(36_525))


def _time(random: Random) -> datetime.time:
    return datetime.time(random.randrange(24), random.randrange(60))


def _number(random: Random, decimals: int) -> float | int:
    """Draws a number of one to four digits, about every second one with decimals."""
    whole = random.randint(1, 10 ** random.randint(1, 4))
    if not decimals or random.randrange(2):
        return whole
    return round(whole + random.randrange(10**decimals) / 10**decimals, decimals)


_WHEN = (_date, _date_time, _date_interval, _time_interval, _weekday_time, _month, _age)
_AMOUNT = (_money, _quantity, _rate, _duration)
_NAME = (_name_in("territories", TERRITORIES), _name_in("languages", LANGUAGES))
_NAMES = (_list_in("territories", TERRITORIES), _list_in("languages", LANGUAGES))
# How parts make a phrase; the punctuation is the same in every language.
_PATTERNS = (
    ("{}", (_WHEN,)),
    ("{}", (_AMOUNT,)),
    ("{}", (_NAMES,)),
    ("{}: {}", (_WHEN, _AMOUNT)),
    ("{}: {}", (_WHEN, _NAMES)),
    ("{}: {}", (_NAME, _AMOUNT)),
    ("{} ({}): {}", (_NAME, _WHEN, _AMOUNT)),
    ("{} ({}): {}", (_AMOUNT, _NAME, _WHEN)),
    ("{}; {}", (_NAMES, _AMOUNT)),
    ("{}: {}; {}", (_WHEN, _NAMES, _AMOUNT)),
)
