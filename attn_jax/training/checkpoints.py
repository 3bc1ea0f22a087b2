"""Orbax checkpoints: parameters, optimizer, step, window, data iterator and running totals."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from attn_jax.config import TrainConfig
from attn_jax.errors import InputError, WorkError
from attn_jax.training.reporter import Totals
from attn_jax.training.state import TrainState


@dataclass(frozen=True)
class _Schedule:
    """When checkpoints are saved, and which stay; Orbax calls this a preservation policy."""

    config: TrainConfig

    def has(self, step: int) -> bool:
        """Tells whether a step is saved in any case, not only where a signal stops the run."""
        return step % self.config.checkpoint_every == 0 or step == self.config.steps

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Keeps the newest checkpoint and the newest `keep_checkpoints` of the scheduled ones.

        So those are left that are left in a run which was never stopped.
        """
        scheduled = [info.step for info in checkpoints if self.has(info.step)]
        kept = {*scheduled[-self.config.keep_checkpoints :], checkpoints[-1].step}
        return [info.step in kept for info in checkpoints]


class Checkpoints:
    """The checkpoints of one run directory.

    A save is asynchronous and appears under its step number only when it is whole; `close` (or
    leaving a `with` block) waits for it.
    """

    def __init__(self, workdir: Path, config: TrainConfig):
        self._schedule = _Schedule(config)
        keep = {"preservation_policy": self._schedule} if config.keep_checkpoints else {}
        options = ocp.CheckpointManagerOptions(**keep)
        self.directory = Path(workdir).absolute() / "checkpoints"
        if self.directory.exists() and not self.directory.is_dir():
            raise InputError(f"{self.directory}: is a file, expected a directory")
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def latest(self) -> int | None:
        """The step of the newest whole checkpoint, or None; waits for one that is being saved."""
        with self._saving():
            self._manager.wait_until_finished()
        return self._manager.latest_step()

    def save(self, state: TrainState, iterator: Any, totals: Totals) -> None:
        """Starts saving; the caller may donate the state at once.

        Raises:
          WorkError: this or the last checkpoint cannot be written, e.g. because the disk is full.
        """
        # As numpy, of which process 0 writes its copy. On CPU that may be a view of buffers which
        # the next step overwrites in place, so it is copied.
        jax.tree.map(lambda x: x.copy_to_host_async(), state)  # all at once
        state = jax.tree.map(np.array, state)
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            # The same in all processes, so any number of them can go on.
            data=ocp.args.JsonSave(iterator.get_state()),
            totals=ocp.args.JsonSave(asdict(totals)),
        )
        with self._saving():
            self._manager.save(int(state.step), args=args, force=True)

    def restore(self, like: TrainState, iterator: Any) -> tuple[TrainState, Totals]:
        """Returns the newest state and totals, and moves `iterator` to where it was.

        Raises:
          InputError: the checkpoint is damaged.
        """
        step = self.latest
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(_as_numpy(like)),
            data=ocp.args.JsonRestore(),
            totals=ocp.args.JsonRestore(),
        )
        with self._reading(step):
            restored = self._manager.restore(step, args=args)
            iterator.set_state(restored.data)
            return restored.state, Totals.of(restored.totals)

    def steps_up_to(self, step: int = 0, count: int = 1) -> list[int]:
        """Returns the last `count` steps saved, none after `step` (0: the newest).

        Of several all but the last are scheduled ones: an average must not depend on when a run
        was stopped.

        Raises:
          InputError: `step` was not saved, or too few were; names the steps there are.
        """
        steps = sorted(self._manager.all_steps())
        there = ", ".join(map(str, steps)) or "none"
        newest = step or self.latest or 0
        until = [x for x in steps if x == newest or (x < newest and self._schedule.has(x))]
        if not until or (step and until[-1] != step):
            raise InputError(
                f"no checkpoint of step {step} in {self.directory}; there are: {there}"
            )
        if len(until) < count:
            raise InputError(
                f"average_last = {count}: {self.directory} has {len(until)} up to step "
                f"{until[-1]}, not counting those of stopped runs; there are: {there}"
            )
        return until[-count:]

    def restore_params(self, like: dict, step: int) -> dict:
        """Returns the parameters at `step`.

        Raises:
          InputError: the checkpoint is damaged, or of another model than `like`.
        """
        target = {"params": _as_numpy(like)}
        path = self.directory / str(step) / "state"
        with ocp.PyTreeCheckpointer() as reader:
            with self._reading(step):
                saved = reader.metadata(path).item_metadata.tree["params"]
            _refuse_misfit(path.parent, parameter_shapes(saved), parameter_shapes(like))
        with self._reading(step), ocp.PyTreeCheckpointer() as reader:
            restore_args = ocp.checkpoint_utils.construct_restore_args(target)
            args = ocp.args.PyTreeRestore(target, restore_args=restore_args, partial_restore=True)
            return reader.restore(path, args=args)["params"]

    def close(self) -> None:
        """Waits until the last save is whole; raises WorkError where it cannot be written."""
        with self._saving():
            self._manager.wait_until_finished()
            self._manager.close()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        try:
            yield
        except WorkError:  # a signal
            raise
        except Exception as error:  # Orbax has no type of its own for a full disk
            whole = self._manager.latest_step()
            kept = f"the one of step {whole} is whole" if whole else "none is whole yet"
            raise WorkError(
                f"{self.directory}: a checkpoint cannot be written ({_short(error)}); {kept}, and "
                "the same command goes on"
            ) from error

    @contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        try:
            yield
        except WorkError:  # a signal, which says nothing about the files
            raise
        except Exception as error:  # whatever Orbax raises for files that are missing or cut short
            raise InputError(
                f"{self.directory / str(step)}: damaged checkpoint ({_short(error)}); without this "
                "folder the one before it is used"
            ) from error


def has_checkpoint(workdir: Path) -> bool:
    """Tells whether a run has a whole checkpoint."""
    return any(folder.name.isdecimal() for folder in (workdir / "checkpoints").glob("*"))


def parameter_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every leaf of nested dicts by its dotted name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {".".join(str(key.key) for key in keys): tuple(x.shape) for keys, x in leaves}


def _refuse_misfit(path: Path, saved: dict[str, tuple], wanted: dict[str, tuple]) -> None:
    """A partial restore would leave what is missing as it is, without a word."""
    for name in [*wanted, *saved]:
        there, here = (shapes.get(name, "not there") for shapes in (saved, wanted))
        if there != here:
            raise InputError(
                f"{path}: parameter {name} is {there} in this checkpoint and {here} in the model "
                "that config.json describes"
            )


def _short(error: Exception) -> str:
    """Returns the first line of an error, which with Orbax can be very long."""
    return shorten(str(error), 160) or type(error).__name__


def _as_numpy(tree: Any) -> Any:
    """Returns what tells Orbax to read numpy arrays of these shapes, wherever they were saved."""
    return jax.tree.map(lambda x: np.empty(x.shape, x.dtype), tree)
