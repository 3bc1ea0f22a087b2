"""What every objective declares, so that no caller asks which one it has."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from jaxtyping import Array

from attn_jax.config import Config, ObjectiveConfig
from attn_jax.data.tokenizers import Vocabulary
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.objectives.batch import Batch


class Objective(ABC):
    """A pure function from text to a batch, called inside the jitted step.

    kind:          "text" or "pair": what it reads.
    architectures: those that it trains.
    mask:          its own visibility: "causal", "prefix" or "bidirectional".
    shift:         0 if a hidden state predicts the token it stands at, 1 if the next one; None if
                   no token of the text is predicted where it stands.
    fills_masks:   whether it was shown <mask> in the place of what it predicts.
    pseudo:        whether the exponential of its loss is no perplexity of the text.

    One that can generate has `prompt(tokens) -> (tokens, source)`: what decoding starts from.
    Subclasses are frozen dataclasses: jit hashes them.
    """

    kind: ClassVar[str]
    architectures: ClassVar[tuple[str, ...]]
    mask: ClassVar[str]
    shift: ClassVar[int | None]
    fills_masks: ClassVar[bool] = False
    pseudo: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def of(cls, config: ObjectiveConfig, vocabulary: Vocabulary) -> "Objective":
        """Makes the objective of a config for a tokenizer's ids."""

    @abstractmethod
    def __call__(
        self,
        text: Tokens | Pair,
        key: Array,
        first_row: Array | int = 0,
        progress: Array | float = 0.0,
    ) -> Batch:
        """Returns the batch for packed rows.

        Args:
          text: what `kind` says.
          key: of this step; each row is masked by it and by the row's number.
          first_row: the number of the first row in the global batch.
          progress: 0 at the first step of training, 1 at the last.
        """

    @classmethod
    def problems(cls, config: Config) -> Iterator[str]:
        """Yields a line for everything in a config that does not fit this objective."""
        yield from ()

    @classmethod
    def longest(cls, config: Config) -> int:
        """Returns the most positions that the model reads in one sequence."""
        return config.data.length

    def scored(self) -> "Objective":
        """Returns what the loss evaluator measures, itself if training has no other loss."""
        return self

    def parts(self) -> dict[str, tuple[float, "Objective"]]:
        """Returns the objectives of which a mixture is made, by name, and the share of each.

        Any other has none.
        """
        return {}
