"""Times CTranslate2 on an encoder-decoder of the same sizes with random weights.

Prints one JSON object. Needs requirements-peers.txt only; `benchmarks.decode` calls it.

python benchmarks/peer_ctranslate2.py --layers=6 --heads=8 --width=512 --ffn=2048 --vocab=32000
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
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec
except ImportError as error:
    sys.exit(f"error: no module {error.name!r} here; pip install -r requirements-peers.txt")

SPECIALS = ["<unk>", "<s>", "</s>"]
POSITIONS = 1024
WARM_UP = 2


class Weights:
    """Fills a model specification with random weights and counts them."""

    def __init__(self, width: int):
        self.width, self.count = width, 0
        self.random = np.random.default_rng(0)

    def draw(self, *shape: int) -> np.ndarray:
        """Returns random float32 values that keep activations at unit scale."""
        self.count += int(np.prod(shape))
        return self.random.normal(0, self.width**-0.5, shape).astype(np.float32)

    def linear(self, spec: common_spec.LinearSpec, outputs: int, inputs: int) -> None:
        """Fills a dense layer with a bias."""
        spec.weight, spec.bias = self.draw(outputs, inputs), np.zeros(outputs, np.float32)
        self.count += outputs

    def norm(self, spec: common_spec.LayerNormSpec) -> None:
        """Fills a layer norm."""
        spec.gamma, spec.beta = np.ones(self.width, np.float32), np.zeros(self.width, np.float32)
        self.count += 2 * self.width

    def attention(self, spec: attention_spec.MultiHeadAttentionSpec, products: list[int]) -> None:
        """Fills attention whose fused products are so many times as wide as the model."""
        self.norm(spec.layer_norm)
        for linear, times in zip(spec.linear, products, strict=True):
            self.linear(linear, times * self.width, self.width)


def save_model(o: argparse.Namespace, directory: str) -> int:
    """Writes a random model; returns its parameters, position tables not counted."""
    relu = common_spec.Activation.RELU
    spec = transformer_spec.TransformerSpec.from_config(o.layers, o.heads, activation=relu)
    weights = Weights(o.width)
    table = weights.draw(o.vocab, o.width)
    for side in (spec.encoder, spec.decoder):
        embeddings = side.embeddings
        (embeddings[0] if isinstance(embeddings, list) else embeddings).weight = table
        side.scale_embeddings = True
        side.position_encodings.encodings = Weights(o.width).draw(POSITIONS, o.width)
        weights.norm(side.layer_norm)
        for layer in side.layer:
            weights.attention(layer.self_attention, [3, 1])
            if side is spec.decoder:
                weights.attention(layer.attention, [1, 2, 1])
            weights.norm(layer.ffn.layer_norm)
            weights.linear(layer.ffn.linear_0, o.ffn, o.width)
            weights.linear(layer.ffn.linear_1, o.width, o.ffn)
    spec.decoder.projection.weight = table
    words = SPECIALS + [f"w{i}" for i in range(o.vocab - len(SPECIALS))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    spec.optimize()
    spec.save(directory)
    return weights.count


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
