"""Batches as a person can read them."""
