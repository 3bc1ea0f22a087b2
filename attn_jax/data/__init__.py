"""From text to batches: sources, tokenizers, packing and the input pipeline."""
