"""The train step, the only loop, and the run directory."""
