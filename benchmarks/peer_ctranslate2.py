"""Times CTranslate2 on an encoder-decoder of the same sizes with random weights.

Prints one JSON object. Needs requirements-peers.txt only; `benchmarks.decode` calls it.

python -m benchmarks.peer_ctranslate2 --layers=6 --heads=8 --width=512 --ffn=2048 --vocab=32000
"""

import argparse
import json
import statistics
import sys
import tempfile
import time

try:
    import ctranslate2
    import numpy as np
except ImportError as error:
    sys.exit(f"error: no module {error.name!r} here; pip install -r requirements-peers.txt")

from attn_jax.config import ModelConfig
from attn_jax.export.ctranslate2_spec import make_spec, rename, save

SPECIALS = ["<unk>", "<s>", "</s>"]
POSITIONS = 1024
WARM_UP = 2


class Random:
    """Draws the parameters of an encoder-decoder and counts them."""

    def __init__(self, config: ModelConfig):
        self.config, self.count = config, 0
        self.rng = np.random.default_rng(0)

    def draw(self, *shape: int) -> np.ndarray:
        """Returns float32 values that keep activations at unit scale."""
        self.count += int(np.prod(shape))
        return self.rng.normal(0, self.config.d_model**-0.5, shape).astype(np.float32)

    def linear(self, inputs: int, outputs: int) -> dict:
        """Returns a dense layer with a bias."""
        return {"kernel": self.draw(inputs, outputs), "bias": 0 * self.draw(outputs)}

    def norm(self) -> dict:
        """Returns a layer norm that changes nothing more."""
        width = self.config.d_model
        return {"scale": 1 + 0 * self.draw(width), "bias": 0 * self.draw(width)}

    def block(self, cross: bool) -> dict:
        """Returns a block, of a decoder if there is cross-attention."""
        D, F = self.config.d_model, self.config.d_ff
        attention = {"qkv": self.linear(D, 3 * D), "out": self.linear(D, D)}
        block = {"norm_attention": self.norm(), "attention": attention}
        if cross:
            products = {"q": self.linear(D, D), "kv": self.linear(D, 2 * D)}
            block |= {"norm_cross": self.norm(), "cross": products | {"out": self.linear(D, D)}}
        mlp = {"up": self.linear(D, F), "down": self.linear(F, D)}
        return block | {"norm_mlp": self.norm(), "mlp": mlp}

    def stack(self, cross: bool) -> dict:
        """Returns one side."""
        blocks = {i: self.block(cross) for i in range(self.config.num_layers)}
        return {"blocks": blocks, "last_norm": self.norm()}


def save_model(o: argparse.Namespace, directory: str) -> int:
    """Writes a random model; returns its parameters, position tables not counted."""
    config = ModelConfig(
        num_layers=o.layers,
        num_heads=o.heads,
        d_model=o.width,
        d_ff=o.ffn,
        activation="relu",
        positions="sinusoidal",
    )
    random = Random(config)
    params = {"embedding": random.draw(o.vocab, o.width)}
    params |= {"encoder": random.stack(cross=False), "decoder": random.stack(cross=True)}
    weights = rename(config, params, Random(config).draw(POSITIONS, o.width))
    words = SPECIALS + [f"w{i}" for i in range(o.vocab - len(SPECIALS))]
    save(make_spec(config, weights), words, directory)
    return random.count


def measure(o: argparse.Namespace) -> dict:
    """Times whole generations, every row to its full length."""
    ids = np.random.default_rng(0).integers(0, o.vocab - 3, (o.batch_size, o.source_length))
    sources = [[f"w{i}" for i in row] for row in ids]
    with tempfile.TemporaryDirectory() as directory:
        parameters = save_model(o, directory)
        model = ctranslate2.Translator(
            directory,
            device="auto",
            compute_type=o.dtype,
            inter_threads=1,
            intra_threads=o.threads,
        )
    length = o.target_length

    def step() -> float:
        start = time.perf_counter()
        results = model.translate_batch(
            sources,
            beam_size=o.beam_size,
            max_batch_size=o.batch_size,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        seconds = time.perf_counter() - start
        if any(len(result.hypotheses[0]) != length for result in results):
            sys.exit("error: CTranslate2 ended a row early")
        return seconds

    last = [step() for _ in range(WARM_UP)][-1]
    times = [step() for _ in range(o.steps or max(5, int(o.seconds / last)))]
    median = statistics.median(times)
    return {
        "peer": f"ctranslate2 {ctranslate2.__version__}",
        "tokens_per_s": o.batch_size * length / median,
        "step_ms": 1e3 * median,
        "steps": len(times),
        "parameters": parameters,
        "threads": o.threads,
        "device": model.device,
    }


def main() -> None:
    """Measures what the flags say."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "heads", "width", "ffn", "vocab"):
        parser.add_argument(f"--{name}", type=int, required=True)
    sizes = {"beam_size": 1, "batch_size": 32, "source_length": 20, "target_length": 20}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32", help="CTranslate2's compute_type")
    parser.add_argument("--threads", type=int, default=0, help="0: CTranslate2 decides")
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit in --seconds")
    parser.add_argument("--seconds", type=float, default=15.0)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
