"""How fast it is: the project's own code paths, timed, as `experiments.benchmark` prints them."""
