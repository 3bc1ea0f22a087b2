"""The budgets of every arm, always shown together: equal in one is rarely equal in another."""

from attn_jax.comparison.runs import Number

BUDGETS = {  # name in ledger.json -> name in words
    "parameters": "parameters",
    "parameters_non_embedding": "parameters without embeddings",
    "training_flops": "training FLOPs",
    "tokens_seen": "tokens seen",
    "loss_bearing_tokens": "loss-bearing tokens",  # by weight: at source_loss 0.5 one is a half
}

TOLERANCE = 0.01  # arms within this share of the largest count as matched


def describe_budgets(means: dict[str, dict[str, Number]]) -> dict[str, list[str]]:
    """Says which budgets are matched over the arms and how the others differ.

    Args:
      means: arm -> budget -> mean over seeds.

    Returns:
      `matched`: budgets in words; `differ`: for each other budget a phrase such as
      "loss-bearing tokens (encoder 30 % of decoder)".
    """
    matched, differ = [], []
    for budget, words in BUDGETS.items():
        by_arm = {arm: budgets[budget] for arm, budgets in means.items()}
        if min(by_arm.values()) >= (1 - TOLERANCE) * max(by_arm.values()):
            matched.append(words)
        else:
            differ.append(f"{words} ({_shares(by_arm)})")
    return {"matched": matched, "differ": differ}


def _shares(by_arm: dict[str, Number]) -> str:
    largest = max(by_arm, key=by_arm.__getitem__)
    rest = [
        f"{arm} {100 * value / by_arm[largest]:.0f} %"
        for arm, value in by_arm.items()
        if value < (1 - TOLERANCE) * by_arm[largest]
    ]
    return f"{', '.join(rest)} of {largest}"
