"""Evaluators: small objects that measure a model and return plain numbers."""
