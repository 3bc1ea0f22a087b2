"""Translation, by an encoder-decoder or by one stack that reads `source <sep> target`."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_jax.config import Config, ObjectiveConfig
from attn_jax.data.tokenizers import Specials, Vocabulary
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives.batch import Batch
from attn_jax.objectives.causal_lm import next_tokens
from attn_jax.objectives.objective import Objective


def _shift(target: Tokens) -> tuple[Tokens, Array, Array]:
    """Returns `<bos> w1 .. wm <eos>`, the targets `w1 .. wm <eos>` and their weights.

    The last column is no input: nothing comes after it.
    """
    targets, weights = next_tokens(target)
    return jax.tree.map(lambda x: x[:, :-1], target), targets[:, :-1], weights[:, :-1]


def _first_token(source: Tokens, token: int) -> Tokens:
    return Tokens.of(jnp.full((source.ids.shape[0], 1), token, jnp.int32))


def join(source: Tokens, target: Tokens, causal: bool = False) -> Tokens:
    """Puts each target after the source of its segment: in fields, not in columns.

    The sources are read from both sides, unless all is `causal`.
    """
    prefixes = jax.vmap(_segment_lengths)(source.segments, target.segments)
    source_prefixes = jax.vmap(_segment_lengths)(source.segments, source.segments)
    target = target.replace(positions=target.positions + prefixes)
    lengths = jnp.concatenate([source_prefixes, prefixes], axis=1)
    source, target = (
        tokens.replace(blocks=None, sides=jnp.full_like(tokens.ids, side))
        for side, tokens in enumerate((source, target))
    )
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), source, target)
    return joined.causal() if causal else joined.prefix(lengths)


def _segment_lengths(counted_S: Array, asked_T: Array) -> Array:
    """Returns for each token of `asked` how many of `counted` are of its segment."""
    same = (asked_T[:, None] == counted_S[None, :]) & (asked_T[:, None] != 0)
    return jnp.sum(same, axis=1, dtype=jnp.int32)


@dataclass(frozen=True)
class Translation(Objective):
    """Encoder-decoder: the source from both sides, the target left to right."""

    specials: Specials

    kind = "pair"
    architectures = ("encoder_decoder",)
    mask = "causal"
    shift = 1

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "Translation":
        """Makes the objective of a config for a tokenizer's ids."""
        return cls(vocabulary.specials)

    def __call__(
        self,
        pair: Pair,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed pairs; nothing is random, so `key` is not read."""
        inputs, targets, weights = _shift(pair.target)
        return Batch(inputs.causal(), targets, weights, source=pair.source.bidirectional())

    def prompt(self, source: Tokens) -> tuple[Tokens, Tokens | None]:
        """Returns what decoding starts from: the target's first token, and the source."""
        return _first_token(source, self.specials.bos).causal(), source


@dataclass(frozen=True)
class CausalTranslation(Objective):
    """One stack that reads `w1 .. wn <eos> <sep> v1 .. vm` left to right, with loss on the target.

    With `source_loss` a next token of the source counts that much, too; the first one has nothing
    before it, and <sep> after the source is no news. Literature disagrees about it: Gao et al. 2022
    need it, to Zhang et al. 2022 (https://arxiv.org/abs/2202.00528) it does harm.

    The padding between the two stays where it is: fields, not indices, say who sees whom.
    """

    specials: Specials
    source_loss: float = 0.0

    kind = "pair"
    architectures = ("decoder",)
    mask = "causal"
    shift = 1

    @classmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary):
        """Makes the objective of a config for a tokenizer's ids."""
        return cls(vocabulary.specials, config.source_loss)

    def __call__(
        self,
        pair: Pair,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed pairs; nothing is random, so `key` is not read."""
        target, targets, weights = _shift(pair.target)
        starts = (target.segments != 0) & (target.positions == 0)
        target = target.replace(ids=jnp.where(starts, self.specials.sep, target.ids))
        S, T = pair.source.ids.shape[1], targets.shape[1]
        first = S
        if self.source_loss:
            first = 0
            next_source, source_weights = next_tokens(pair.source)
            targets = jnp.concatenate([next_source, targets], axis=1)
            weights = jnp.concatenate([self.source_loss * source_weights, weights], axis=1)
        at = jnp.broadcast_to(jnp.arange(first, S + T), targets.shape)
        return Batch(self._join(pair.source, target), targets, weights, at)

    def prompt(self, source: Tokens) -> tuple[Tokens, Tokens | None]:
        """Returns what decoding starts from: `w1 .. wn <eos> <sep>`, and no separate source."""
        return self._join(source, _first_token(source, self.specials.sep)), None

    def _join(self, source: Tokens, target: Tokens) -> Tokens:
        return join(source, target, causal=self.mask == "causal")

    def scored(self) -> "CausalTranslation":
        """Returns the objective without loss on the source."""
        return replace(self, source_loss=0.0)

    @classmethod
    def longest(cls, config: Config) -> int:
        """Returns the positions of both sides."""
        return 2 * config.data.length


@dataclass(frozen=True)
class PrefixTranslation(CausalTranslation):
    """The same, but the source is read from both sides, so that its next tokens are no secret.

    `source_loss` must be 0 here.
    """

    mask = "prefix"
