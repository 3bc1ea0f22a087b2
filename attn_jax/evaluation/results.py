"""What evaluators leave: plain values in nested dicts, some of them by mask."""

from typing import Any

MASKS = ("causal", "prefix", "bidirectional")  # from the narrowest view to the widest


def flat_numbers(results: dict[str, Any], prefix: str = "") -> dict[str, int | float]:
    """Returns the numbers in nested dicts, their keys joined by `/`; leaves out anything else."""
    flat: dict[str, int | float] = {}
    for name, value in results.items():
        if isinstance(value, dict):
            flat |= flat_numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[prefix + name] = value
    return flat
