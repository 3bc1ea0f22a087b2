"""Both studies in one report: `make compare`.

python -m experiments.compare --config=configs/compare.py --workdir=runs/compare
"""

from dataclasses import dataclass, field

from attn_jax.comparison.arms import Study
from attn_jax.config import Section
from configs import compare_masking, compare_translation


@dataclass
class Studies(Section):
    """The studies of the report, in its order."""

    masking: Study = field(default_factory=compare_masking.get_config)
    translation: Study = field(default_factory=compare_translation.get_config)


def get_config() -> Studies:
    return Studies()
