"""Times the training step of the same language model in PyTorch, under torch.compile.

Prints one JSON object. Needs requirements-peers.txt only; `benchmarks.train` calls it.

python benchmarks/peer_torch.py --layers=6 --heads=8 --width=512 --length=256 --batch=8 --vocab=8192
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    sys.exit(f"error: no module {error.name!r} here; pip install -r requirements-peers.txt")

WARM_UP = 2
NO_TARGET = -100  # what `cross_entropy` leaves out


class Layer(nn.Module):
    """Pre-norm self-attention and MLP, without biases."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.project_in = nn.Linear(width, 3 * width, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(approximate="tanh"),  # as jax.nn.gelu
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Applies the layer to [B, T, D]."""
        heads = self.project_in(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.project_out(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """Tied embedding, learned positions, layers, a last norm; returns the mean loss."""

    def __init__(self, o: argparse.Namespace):
        super().__init__()
        causal = o.objective == "causal_lm"
        self.embedding = nn.Embedding(o.vocab, o.width)
        self.positions = nn.Parameter(torch.randn(o.length, o.width) * o.width**-0.5)
        self.layers = nn.ModuleList(Layer(o.width, o.heads, causal) for _ in range(o.layers))
        self.last_norm = nn.LayerNorm(o.width, bias=False)
        nn.init.normal_(self.embedding.weight, std=o.width**-0.5)

    def forward(self, ids: Tensor, targets: Tensor, at: Tensor | None) -> Tensor:
        """Predicts `targets` from the hidden states in the columns `at`, or from all."""
        x = self.embedding(ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        if at is not None:
            x = x.gather(1, at[:, :, None].expand(-1, -1, x.shape[-1]))
        logits = functional.linear(self.last_norm(x), self.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def mask(ids: Tensor, rate: float, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what is read, the targets and their columns: 80 % masked, 10 % random (BERT)."""
    count = round(rate * ids.shape[1])
    at = torch.rand(ids.shape, device=ids.device).topk(count, dim=1).indices
    targets = ids.gather(1, at)
    how = torch.rand(at.shape, device=ids.device)
    read = torch.where(how < 0.9, torch.randint_like(targets, vocab), targets)
    read = torch.where(how < 0.8, vocab - 1, read)
    return ids.scatter(1, at, read), targets, at


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Returns AdamW, fused, that decays the matrices of the dense layers only."""
    dense = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    groups = [
        {"params": [p for p in model.parameters() if id(p) in dense], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if id(p) not in dense], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)


def measure(o: argparse.Namespace) -> dict:
    """Times forward, backward, clipping and update on random ids."""
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LanguageModel(o).to(device)
    compiled = torch.compile(model)
    optimizer = make_optimizer(model)
    half = o.dtype == "bfloat16"

    def step() -> float:
        start = time.perf_counter()
        ids = torch.randint(o.vocab, (o.batch, o.length), device=device)
        if o.objective == "masked_lm":
            inputs, targets, at = mask(ids, o.mask_rate, o.vocab)
        else:
            inputs, targets, at = ids, functional.pad(ids[:, 1:], (0, 1), value=NO_TARGET), None
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = compiled(inputs, targets, at)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits for the device
        return time.perf_counter() - start

    first = step()
    last = [step() for _ in range(WARM_UP)][-1]
    times = [step() for _ in range(o.steps or max(5, int(o.seconds / last)))]
    median = statistics.median(times)
    return {
        "peer": f"torch {torch.__version__}, torch.compile",
        "tokens_per_s": o.batch * o.length / median,
        "step_ms": 1e3 * median,
        "steps": len(times),
        "first_step_s": first,
        "parameters": sum(p.numel() for p in model.parameters()),
        "threads": torch.get_num_threads(),
        "device": device,
    }


def main() -> None:
    """Measures what the flags say."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "heads", "width", "length", "batch", "vocab"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--objective", choices=("causal_lm", "masked_lm"), default="causal_lm")
    parser.add_argument("--mask_rate", type=float, default=0.3)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit in --seconds")
    parser.add_argument("--seconds", type=float, default=15.0)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
