"""A batch as a person can read it: inputs, targets, weights, and who sees whom."""

import jax
import numpy as np

from attn_jax.data.tokenizers import Tokenizer
from attn_jax.models.masks import visible
from attn_jax.models.tokens import Tokens
from attn_jax.objectives.batch import Batch


def describe_row(
    batch: Batch, tokenizer: Tokenizer, row: int, columns: int, window: int = 0
) -> str:
    """Returns tables and mask matrices of the first positions of one row.

    Args:
      batch: what an objective returns.
      tokenizer: names the tokens.
      row: of the batch.
      columns: most positions that are shown.
      window: of the model.
    """
    batch = jax.tree.map(lambda x: np.asarray(x)[row : row + 1], batch)
    shown = jax.tree.map(lambda x: x[:, :columns], batch.inputs)
    parts = [_table(shown, tokenizer, _targets(batch, tokenizer))]
    parts.append(_matrix("who sees whom", visible(shown, shown, window)[0]))
    if batch.source is not None:
        source = jax.tree.map(lambda x: x[:, :columns], batch.source)
        parts.append(f"source\n{_table(source, tokenizer, {})}")
        parts.append(_matrix("source sees source", visible(source, source, window)[0]))
        parts.append(_matrix("cross-attention: target sees source", visible(shown, source)[0]))
    return "\n\n".join(parts)


def _targets(batch: Batch, tokenizer: Tokenizer) -> dict[int, tuple[str, float]]:
    """Returns `{column: (target, weight)}` of what a row predicts, targets without weight left out.

    The place is that of the hidden state which predicts, so a next token stands beside the one
    before it.
    """
    count = batch.targets.shape[1]
    at = np.arange(count) if batch.at is None else batch.at[0]
    told = zip(at.tolist(), batch.targets[0], batch.weights[0].tolist(), strict=True)
    return {column: (tokenizer.piece(id), weight) for column, id, weight in told if weight}


def _table(tokens: Tokens, tokenizer: Tokenizer, targets: dict[int, tuple[str, float]]) -> str:
    lines = [f"{'column':>6}  {'input':<16}{'position':>8}{'segment':>8}{'block':>6}"]
    lines[0] += "  target" if targets else ""
    fields = (tokens.ids, tokens.positions, tokens.segments, tokens.blocks)
    for column, (id, *numbers) in enumerate(zip(*(x[0].tolist() for x in fields), strict=True)):
        position, segment, block = numbers
        line = f"{column:>6}  {_name(tokenizer, id):<16}{position:>8}{segment:>8}{block:>6}"
        if column in targets:
            target, weight = targets[column]
            line += f"  {target!r}" + (f" x {weight:g}" if weight != 1 else "")
        lines.append(line)
    return "\n".join(lines)


def _name(tokenizer: Tokenizer, id: int) -> str:
    piece = tokenizer.piece(id)
    return piece if piece.startswith("<") else repr(piece)


def _matrix(title: str, seen: np.ndarray) -> str:
    rows = [" ".join("x" if cell else "." for cell in row) for row in seen]
    return "\n".join([f"{title} (rows: queries, columns: keys)", *rows])
