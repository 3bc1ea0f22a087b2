"""Generation over a step(tokens, cache) callable."""
