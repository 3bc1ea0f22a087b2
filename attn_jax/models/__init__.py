"""Tokens, masks, attention and the Transformers made of them."""
