"""A comparison directory from its studies to what the report shows: sweeps, then final runs."""

from pathlib import Path

from attn_jax.comparison import sweeps
from attn_jax.comparison.arms import Run, Study, is_finished, plan
from attn_jax.comparison.collect import collect
from attn_jax.comparison.runs import Json
from attn_jax.errors import InputError
from attn_jax.training.many import train_all


class Comparison:
    """One or several studies with all their runs.

    Everything is read from the run directories, so several processes, on one machine or more, may
    work on the same comparison.
    """

    def __init__(self, studies: dict[str, Study], seeds: str, root: Path):
        """Plans the runs.

        Args:
          studies: by name; several have a folder each.
          seeds: of the final runs, comma-separated; empty means those of each study.
          root: directory of the comparison.

        Raises:
          InputError: one line naming the study and what is wrong with it, or `root` is a run's.
        """
        if (root / "config.json").exists():
            raise InputError(f"workdir = {root}: holds a single run, expected a place for several")
        self._studies, self._seeds = studies, seeds
        self._roots = {name: root / name if len(studies) > 1 else root for name in studies}
        for name in studies:
            plan(studies[name], seeds, self._roots[name])
        self._sweeps = {n: sweeps.plan_sweep(studies[n], seeds, self._roots[n]) for n in studies}

    def train(self, workers: int) -> None:
        """Trains what is missing; says to what the arms were tuned.

        Raises:
          InputError, WorkError: as `train_all` and `collect_sweep` do.
        """
        sweep = [run for name in self._studies for run in self._open_sweep(name)]
        train_all([(run.config, run.directory) for run in sweep], workers, may_diverge=True)
        final = []
        for name in self._studies:
            swept = self._swept(name)
            if swept:
                print(*sweeps.described(swept), sep="\n", flush=True)
            final += self._open_final(name, swept)
        train_all([(run.config, run.directory) for run in final], workers)

    def open_runs(self) -> list[Run]:
        """Returns the runs that can begin: of a study its sweep or, after that, its final runs."""
        return [run for name in self._studies for run in self._open_runs(name)]

    def collect(self) -> dict[str, Json]:
        """Returns what `collect` does of every study, and its `sweep`, or None.

        Raises:
          InputError: the runs of a study are missing or cannot be compared.
        """
        collected = {}
        for name in self._studies:
            swept = self._swept(name)
            collected[name] = collect(self._final(name, swept)) | {"sweep": swept}
        return collected

    def _open_runs(self, name: str) -> list[Run]:
        open_sweep = self._open_sweep(name)
        if open_sweep:
            return open_sweep
        return self._open_final(name, self._swept(name))

    def _open_sweep(self, name: str) -> list[Run]:
        return [run for run in self._sweeps[name] if not sweeps.is_settled(run)]

    def _swept(self, name: str) -> Json | None:
        return sweeps.collect_sweep(self._sweeps[name]) if self._sweeps[name] else None

    def _open_final(self, name: str, swept: Json | None) -> list[Run]:
        return [run for run in self._final(name, swept) if not is_finished(run)]

    def _final(self, name: str, swept: Json | None) -> list[Run]:
        best = swept["best"] if swept else None
        return plan(self._studies[name], self._seeds, self._roots[name], best)
