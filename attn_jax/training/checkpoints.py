"""Orbax checkpoints: parameters, optimizer, step, window, data iterator and running totals."""

from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from attn_jax.errors import InputError
from attn_jax.training.state import TrainState


class Checkpoints:
    """The checkpoints of one run directory.

    A save is asynchronous and appears under its step number only when it is whole; `close` (or
    leaving a `with` block) waits for it.
    """

    def __init__(self, workdir: Path, keep: int = 0):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep or None)
        self.directory = Path(workdir).absolute() / "checkpoints"
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def latest(self) -> int | None:
        """The step of the newest whole checkpoint, or None; waits for one that is being saved."""
        self._manager.wait_until_finished()
        return self._manager.latest_step()

    def save(self, state: TrainState, iterator: Any, totals: dict[str, Any]) -> None:
        """Starts saving; the caller may donate the state at once."""
        # Orbax may still read CPU buffers while the next step overwrites them in place.
        state = jax.tree.map(jnp.copy, state)
        self._manager.save(
            int(state.step),
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                data=grain.checkpoint.CheckpointSave(iterator),
                totals=ocp.args.JsonSave(totals),
            ),
            force=True,
        )

    def restore(self, like: TrainState, iterator: Any) -> tuple[TrainState, dict[str, Any]]:
        """Returns the newest state and totals, and moves `iterator` to where it was."""
        restored = self._manager.restore(
            self.latest,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(_on_first_device(like)),
                data=grain.checkpoint.CheckpointRestore(iterator),
                totals=ocp.args.JsonRestore(),
            ),
        )
        return restored.state, restored.totals

    def restore_params(self, like: dict, step: int = 0) -> tuple[dict, int]:
        """Returns the parameters at `step` (0: the newest) and that step.

        Raises:
          InputError: there is no such checkpoint; names the steps there are.
        """
        steps = self._manager.all_steps()
        step = step or self.latest or 0
        if step not in steps:
            there = ", ".join(map(str, sorted(steps))) or "none"
            raise InputError(
                f"no checkpoint of step {step} in {self.directory}; there are: {there}"
            )
        target = {"params": _on_first_device(like)}
        with ocp.PyTreeCheckpointer() as reader:
            path = self.directory / str(step) / "state"
            restore_args = ocp.checkpoint_utils.construct_restore_args(target)
            args = ocp.args.PyTreeRestore(target, restore_args=restore_args, partial_restore=True)
            return reader.restore(path, args=args)["params"], step

    def close(self) -> None:
        """Waits until the last save is whole."""
        self._manager.wait_until_finished()
        self._manager.close()


def _on_first_device(tree: Any) -> Any:
    """Describes arrays as this process will hold them, wherever they were saved."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)
