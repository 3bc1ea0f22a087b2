"""Encoders, decoders and encoder-decoders that differ in one line, the attention mask."""
