"""Attention and whole models in numpy and float64, to be read: what ours must equal."""

from dataclasses import replace

import jax
import numpy as np
from flax import nnx


def slow_attend(q, k, v, queries, keys, window=0):
    """Softmax attention in float64, one query at a time over the keys it may see."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (B, H, T, K), G = q.shape, k.shape[1]
    out = np.zeros((B, H, T, K))
    queries, keys = jax.tree.map(np.asarray, (queries, keys))
    for b in range(B):
        for h in range(H):
            for t in range(T):
                seen = (keys.segments[b] == queries.segments[b, t]) & (keys.segments[b] != 0)
                seen &= keys.blocks[b] <= queries.blocks[b, t]
                if window:
                    seen &= abs(keys.positions[b] - queries.positions[b, t]) < window
                if seen.any():
                    scores = k[b, h * G // H, seen] @ q[b, h, t] / np.sqrt(K)
                    weights = np.exp(scores - scores.max())
                    out[b, h, t] = weights / weights.sum() @ v[b, h * G // H, seen]
    return out


def slow_logits(model, tokens, source=None, kept=1.0):
    """Logits [B, T, V]; whatever dropout would act on is multiplied by `kept`."""
    c = model.config
    weights = nnx.to_pure_dict(nnx.state(model))
    weights = jax.tree.map(lambda x: np.asarray(x, np.float64), weights)
    tokens, source = jax.tree.map(np.asarray, (tokens, source))
    table, root = weights["embedding"], c.d_model**0.5
    memory = None
    if c.architecture == "encoder_decoder":
        source = replace(source, blocks=0 * source.positions)
        side = weights["decoder" if c.share_sides else "encoder"]
        memory = slow_stack(c, side, table[source.ids] * root, source, None, kept), source
    causal = c.architecture != "encoder"
    tokens = replace(tokens, blocks=tokens.positions * causal)
    side = weights["decoder" if memory else "stack"]
    return slow_stack(c, side, table[tokens.ids] * root, tokens, memory, kept) @ table.T


def slow_stack(c, weights, x, tokens, memory, kept):
    """Hidden states of embedded tokens, given those of the source and the source's fields."""
    if c.positions == "learned":
        x = x + weights["positions"][tokens.positions]
    if c.positions == "sinusoidal":
        angles = slow_angles(tokens.positions, c.d_model // 2)
        x = x + np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    x, pre = x * kept, c.norm_position == "pre"
    for _, block in sorted(weights["blocks"].items()):
        for name in ("attention", "cross", "mlp") if memory else ("attention", "mlp"):
            h = norm(c, block["norm_" + name], x) if pre else x
            if name == "attention":
                y = attention(c, block[name], h, tokens, h, tokens)
            elif name == "cross":
                y = attention(c, block[name], h, tokens, *memory)
            else:
                y = mlp(c, block[name], h)
            x = x + kept * y
            x = x if pre else norm(c, block["norm_" + name], x)
    return norm(c, weights["last_norm"], x) if pre else x


def dense(weights, x):
    return x @ weights["kernel"] + weights.get("bias", 0)


def norm(c, weights, x):
    if c.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * weights["scale"] + weights.get("bias", 0)


def mlp(c, weights, x):
    x = dense(weights["up"], x)
    if c.activation == "swiglu":
        gate, x = np.split(x, 2, axis=-1)
        x = gate / (1 + np.exp(-gate)) * x
    elif c.activation == "relu":
        x = np.maximum(x, 0)
    else:  # gelu with the tanh of the paper
        x = x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return dense(weights["down"], x)


def attention(c, weights, x, queries, memory, keys):
    """Self-attention where there is one product for q, k and v, else cross-attention."""
    H, G, K = c.num_heads, c.num_kv_heads or c.num_heads, c.d_model // c.num_heads
    alone = "qkv" in weights
    if alone:
        q, k, v = np.split(dense(weights["qkv"], x), [H * K, (H + G) * K], axis=-1)
    else:
        q, (k, v) = dense(weights["q"], x), np.split(dense(weights["kv"], memory), 2, axis=-1)
    q, k, v = (y.reshape(*y.shape[:2], -1, K).swapaxes(1, 2) for y in (q, k, v))
    if alone and c.positions == "rotary":
        q, k = turned(q, queries.positions), turned(k, keys.positions)
    y = slow_attend(q, k, v, queries, keys, c.window if alone else 0)
    return dense(weights["out"], y.swapaxes(1, 2).reshape(x.shape))


def turned(x, positions):
    """Pairs of numbers as complex ones, each turned by its angle."""
    a, b = np.split(x, 2, axis=-1)
    pairs = (a + 1j * b) * np.exp(1j * slow_angles(positions, a.shape[-1]))[:, None]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def slow_angles(positions, count):
    return positions[..., None] / 10_000.0 ** (np.arange(count) / count)
