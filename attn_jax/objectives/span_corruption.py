"""Span corruption: hidden spans are written out one after the other (T5)."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from attn_jax.config import Config, ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch, row_keys
from attn_jax.objectives.causal_lm import next_tokens
from attn_jax.objectives.objective import Objective
from attn_jax.objectives.translation import join


def span_counts(length: int, rate: float, mean: float) -> tuple[int, int]:
    """Returns how many tokens of a row are hidden, and in how many spans.

    Args:
      length: tokens of the row, special ones included.
      rate: share of them that is hidden.
      mean: tokens of a span.
    """
    if length < 2:
        return 0, 0
    hidden = min(max(round(length * rate), 1), length - 1)
    return hidden, min(max(round(hidden / mean), 1), length - hidden)


@dataclass(frozen=True)
class SpanCorruption(Objective):
    """A sentinel stands for each hidden span of the source; the target is what they stand for.

        row     <bos> a b c d e f g h <eos>
        source  <bos> a <sentinel_0> d e f <sentinel_1> h <eos>
        read    <sentinel_0> b c <sentinel_1> g
        target  b c <sentinel_1> g <eos>

    Raffel et al. 2020, T5. Of a row of T tokens M = T * rate are hidden in K = M / span_length
    spans (both rounded), so sources have T - M + K tokens, and targets M + K: decoding starts at
    the first sentinel, which is known. Documents are corrupted each on its own, with sentinels from
    the first on; a span holds no special token and never touches another. The spans of a row are
    drawn over all of it, so a short document may have none. Where there is no room for M tokens
    in K spans, as in a row of one-word documents, fewer are hidden, and what makes the source too
    long is left out at its end.
    """

    vocabulary: Vocabulary
    rate: float
    span_length: float

    kind = "text"
    architectures = ("encoder_decoder",)
    mask = "causal"
    shift = None
    pseudo = True

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "SpanCorruption":
        """Makes the objective of a config for a tokenizer's ids."""
        return cls(vocabulary, config.mask_rate, config.span_length)

    @classmethod
    def problems(cls, config: Config) -> Iterator[str]:
        """Yields a line if there are too few sentinels, or if the rate should change."""
        o, length = config.objective, config.data.length
        _, spans = span_counts(length, o.mask_rate, o.span_length)
        if config.tokenizer.sentinels < spans:
            yield (
                f"tokenizer.sentinels = {config.tokenizer.sentinels}: objective.name = {o.name!r} "
                f"hides {spans} spans in a row of data.length = {length}, expected at least {spans}"
            )
        if o.final_mask_rate:
            yield (
                f"objective.final_mask_rate = {o.final_mask_rate:g}: expected 0, as the lengths of "
                f"objective.name = {o.name!r} are those of one rate"
            )

    def __call__(
        self,
        tokens: Tokens,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed rows; the spans are drawn anew in each step."""
        source, target = self._corrupt(tokens, key, first_row)
        targets, weights = self._targets(target)
        return Batch(target.causal(), targets, weights, source=source.bidirectional())

    def lengths(self, T: int) -> tuple[int, int]:
        """Returns the positions of sources and of targets of rows of T."""
        hidden, spans = span_counts(T, self.rate, self.span_length)
        return T - hidden + spans, hidden + spans

    def _targets(self, target: Tokens) -> tuple[Array, Array]:
        following, same = next_tokens(target)
        following = jnp.where(same > 0, following, self.vocabulary.specials.eos)
        return following, (target.segments != 0).astype(jnp.float32)

    def _corrupt(self, tokens: Tokens, key: Array, first_row: Array | int) -> tuple[Tokens, Tokens]:
        """Returns sources, and targets that begin with their first sentinel."""
        keys = row_keys(key, tokens, first_row)
        return jax.vmap(self._corrupt_row)(keys, tokens.ids, tokens.segments)

    def _corrupt_row(self, key: Array, ids_T: Array, segments_T: Array) -> tuple[Tokens, Tokens]:
        T = ids_T.shape[0]
        S, N = self.lengths(T)
        hidden, starts = self._draw(key, ids_T, segments_T)
        kept = (segments_T != 0) & (~hidden | starts)
        place = jnp.cumsum(kept) - 1  # in the source
        hidden, starts = hidden & (place < S), starts & (place < S)

        first = _first_columns(segments_T)
        count = jnp.cumsum(starts)
        number = count - 1 - (count - starts)[first]  # of the span in its document
        sentinels = jnp.asarray(self.vocabulary.sentinels, jnp.int32)[number]
        source = self._place(S, (kept, place, jnp.where(starts, sentinels, ids_T)), segments_T)

        place = jnp.cumsum(hidden) - 1 + count  # in the target, the sentinel one before
        target = self._place(N, (starts, place - 1, sentinels), segments_T)
        words = self._place(N, (hidden, place, ids_T), segments_T)
        is_word = words.segments != 0
        target = jax.tree.map(lambda a, b: jnp.where(is_word, b, a), target, words)
        return _number_positions(source), _number_positions(target)

    def _place(self, length: int, what: tuple[Array, Array, Array], segments_T: Array) -> Tokens:
        """Returns a row with the ids that count, each at its place; padding elsewhere."""
        counts, place, ids = what
        place = jnp.where(counts, place, length)  # beyond the end: dropped

        def put(values: Array, empty: int) -> Array:
            return jnp.full(length, empty, jnp.int32).at[place].set(values, mode="drop")

        segments = put(segments_T, 0)
        return Tokens(put(ids, self.vocabulary.specials.pad), jnp.zeros_like(segments), segments)

    def _draw(
        self, key: Array, ids_T: Int[Array, " T"], segments_T: Int[Array, " T"]
    ) -> tuple[Bool[Array, " T"], Bool[Array, " T"]]:
        """Returns which tokens are hidden, and which of these begin a span.

        A seed of each span is drawn, no two of them neighbours; then the tokens that spans grow by,
        among all that would not make two of them touch. So lengths are about geometric, and their
        sum is exact.
        """
        T = ids_T.shape[0]
        counts = np.array([span_counts(n, self.rate, self.span_length) for n in range(T + 1)])
        most_hidden, most_spans = counts[T].tolist()
        real = segments_T != 0
        may = real & ~jnp.isin(ids_T, jnp.array(self.vocabulary.special))
        hidden, spans = jnp.asarray(counts, jnp.int32)[real.sum()]
        n = may.sum()
        spans = jnp.minimum(spans, (n + 1) // 2)
        seed_key, growth_key = jax.random.split(key)

        # From here on a column counts only the n tokens that may be hidden.
        columns = jnp.argsort(~may, stable=True)
        begins = may & (~jnp.roll(may, 1) | (jnp.roll(segments_T, 1) != segments_T))
        run = jnp.cumsum(begins.at[0].set(may[0]))[columns]  # of tokens side by side
        index = jnp.arange(T)
        # Of n - spans + 1 tokens, as many as there are spans: each brings the next one with it.
        slots = jnp.sort(_draw_some(seed_key, index < n - spans + 1, most_spans, spans))
        seeds = jnp.where(slots < T, slots + jnp.arange(most_spans), T)
        is_seed = jnp.zeros(T, bool).at[seeds].set(True, mode="drop")

        # A token can belong to the last seed before it or, where there is none, to the next one.
        last = jnp.cumsum(is_seed) - 1
        seed_run = run.at[seeds].get(mode="fill", fill_value=-1)
        after = (last >= 0) & (seed_run[jnp.maximum(last, 0)] == run)
        owner = jnp.clip(jnp.where(after, last, last + 1), 0, most_spans - 1)
        in_reach = (index < n) & (seed_run[owner] == run)
        touches = (jnp.roll(is_seed, -1) & (jnp.roll(run, -1) == run)).at[-1].set(False) & after
        may_grow = in_reach & ~is_seed & ~touches
        grown = _draw_some(growth_key, may_grow, most_hidden, hidden - is_seed.sum())
        side = owner + jnp.where(after, 0, most_spans)
        sizes = jnp.zeros(2 * most_spans, jnp.int32)
        sizes = sizes.at[side.at[grown].get(mode="fill", fill_value=2 * most_spans)].add(
            1, mode="drop"
        )
        covered = is_seed | (may_grow & (abs(index - seeds[owner]) <= sizes[side]))
        goes_on = jnp.roll(covered, 1) & (jnp.roll(run, 1) == run) & (index > 0)

        def back(x: Array) -> Array:
            return jnp.zeros(T, bool).at[columns].set(x)

        return back(covered), back(covered & ~goes_on)


@dataclass(frozen=True)
class PrefixSpanCorruption(SpanCorruption):
    """The same by one stack: `source <sep> target`, the source read from both sides.

    <sep> stands for the first sentinel of the target.
    """

    architectures = ("decoder",)
    mask = "prefix"

    @classmethod
    def longest(cls, config: Config) -> int:
        """Returns the positions of source and target."""
        o = config.objective
        return (
            config.data.length + 2 * span_counts(config.data.length, o.mask_rate, o.span_length)[1]
        )

    def __call__(
        self,
        tokens: Tokens,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed rows; the spans are drawn anew in each step."""
        source, target = self._corrupt(tokens, key, first_row)
        targets, weights = self._targets(target)
        starts = (target.segments != 0) & (target.positions == 0)
        target = target.replace(ids=jnp.where(starts, self.vocabulary.specials.sep, target.ids))
        S, N = source.ids.shape[1], target.ids.shape[1]
        at = jnp.broadcast_to(jnp.arange(S, S + N), targets.shape)
        return Batch(join(source, target), targets, weights, at)


def _draw_some(key: Array, among: Bool[Array, " T"], most: int, count: Array) -> Array:
    """Returns `count` of the columns `among`, all if there are fewer, as [most]; T for none."""
    T = among.shape[0]
    score, drawn = jax.lax.top_k(jnp.where(among, jax.random.uniform(key, (T,)), -1.0), most)
    return jnp.where((score >= 0) & (jnp.arange(most) < count), drawn, T)


def _first_columns(segments_T: Array) -> Array:
    """Returns for each token where its segment begins."""
    columns = jnp.arange(segments_T.shape[0])
    begins = jnp.roll(segments_T, 1) != segments_T
    return jax.lax.cummax(jnp.where(begins, columns, 0))


def _number_positions(row: Tokens) -> Tokens:
    columns = jnp.arange(row.ids.shape[0], dtype=jnp.int32)
    first = _first_columns(row.segments).astype(jnp.int32)
    return row.replace(positions=jnp.where(row.segments != 0, columns - first, 0))
