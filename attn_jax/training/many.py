"""Trains several runs, on CPU one a core, under one progress bar."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import jax

from attn_jax.compilation_cache import use_compilation_cache
from attn_jax.config import Config
from attn_jax.data.pipeline import open_dataset
from attn_jax.devices import cores
from attn_jax.errors import DivergedError, HeldError, WorkError
from attn_jax.progress import progress_bar
from attn_jax.training.loop import train
from attn_jax.training.metrics import read_metrics
from attn_jax.training.run_directory import is_claimed

POLL_SECONDS = 0.5

RunSpec = tuple[Config, Path]


def train_all(runs: Sequence[RunSpec], workers: int = 0, may_diverge: bool = False) -> None:
    """Trains `(config, workdir)` runs; those that were stopped go on from their checkpoints.

    A run that another process is training is left to it and waited for, so that processes which
    are given the same runs share the work.

    A small model cannot keep several cores busy: on two, 2 runs side by side take about 3/4 of
    the time of one after the other.

    Args:
      runs: validated configs and their run directories.
      workers: processes; 0 means one a core on CPU, and one on an accelerator.
      may_diverge: whether a run whose loss is not finite is left at that, also later.

    Raises:
      InputError, WorkError: as `train` does for the first run that fails; runs that have begun
        are stopped and saved.
    """
    if not workers:
        workers = len(cores()) if jax.default_backend() == "cpu" else 1
    workers = min(workers, len(runs))
    _prepare(runs)
    if workers <= 1:
        _train_here(runs, may_diverge)
        return
    context = get_context("spawn")
    numbers = context.Queue()
    for number in range(workers):
        numbers.put(_share(number, workers))
    os.environ["TQDM_DISABLE"] = "1"  # in the workers, which read it when they import tqdm
    options = {"mp_context": context, "initializer": _start, "initargs": (numbers, os.getpid())}
    with ProcessPoolExecutor(workers, **options) as pool, _stop_on_signal(pool) as stop:
        try:
            _watch(pool, runs, workers, may_diverge, stop)
        except BaseException:
            _terminate(pool)
            raise


def _prepare(runs: Sequence[RunSpec]) -> None:
    """Prepares each data set once, before several processes would do it at the same time."""
    prepared = []
    for config, _ in runs:
        what = config.data, config.tokenizer, config.train.init_directory
        if what not in prepared:
            open_dataset(config)
            prepared.append(what)


def _train_here(runs: Sequence[RunSpec], may_diverge: bool) -> None:
    waiting = list(runs)
    while waiting:
        run = _take(waiting)
        if run is None:  # other processes are at all of them
            time.sleep(POLL_SECONDS)
            continue
        print(f"run {len(runs) - len(waiting)} of {len(runs)}: {run[1]}", flush=True)
        if not _attempt(*run, may_diverge):
            waiting.append(run)


def _take(waiting: list[RunSpec]) -> RunSpec | None:
    """Takes out the first run that no other process is training, if there is one."""
    for index, (_, workdir) in enumerate(waiting):
        if not is_claimed(workdir):
            return waiting.pop(index)
    return None


def _attempt(config: Config, workdir: Path, may_diverge: bool) -> bool:
    """Trains a run; returns False if another process claimed it first."""
    if _signals:
        raise WorkError("stopped by a signal before the run began; the same command goes on")
    try:
        train(config, workdir, retry=not may_diverge)
    except HeldError:
        return False
    except DivergedError:
        if not may_diverge:
            raise
    return True


def _watch(
    pool: Executor,
    runs: Sequence[RunSpec],
    workers: int,
    may_diverge: bool,
    stop: threading.Event,
) -> None:
    """Keeps all workers busy and shows steps done over all runs until all are finished."""
    waiting: list[RunSpec] = list(runs)
    running: dict[Future, RunSpec] = {}
    start = sum(_step(workdir) for _, workdir in runs)
    total = sum(config.train.steps for config, _ in runs)
    with progress_bar(total, start, "step") as bar:
        while waiting or running:
            # Never more than there are workers: a queued run would begin after a stop.
            while len(running) < workers and not stop.is_set() and (run := _take(waiting)):
                running[pool.submit(_attempt, *run, may_diverge)] = run
            for future in [future for future in running if future.done()]:
                run = running.pop(future)
                if not stop.is_set() and not _settled(future):
                    waiting.append(run)
            if stop.is_set() and not running:
                raise WorkError("stopped by a signal; the same command goes on from what is saved")
            left = len(waiting) + len(running)
            bar.set_description(f"{len(runs) - left} of {len(runs)} runs done", refresh=False)
            bar.update(sum(_step(workdir) for _, workdir in runs) - bar.n)
            if left:
                time.sleep(POLL_SECONDS)


def _settled(future: Future) -> bool:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise WorkError(
            "a training process was ended from outside (out of memory?); finished runs are "
            "kept, and the same command goes on with the others"
        ) from error


def _step(workdir: Path) -> int:
    lines = read_metrics(workdir)
    return lines[-1]["step"] if lines else 0


@contextmanager
def _stop_on_signal(pool: ProcessPoolExecutor) -> Iterator[threading.Event]:
    """Passes SIGTERM and SIGINT on to the workers, whose runs then save themselves."""
    stop = threading.Event()

    def handle(*_: object) -> None:
        if not stop.is_set():
            print("\nstopping: the runs save their state ...", file=sys.stderr, flush=True)
        stop.set()
        _terminate(pool)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.terminate()


# Of a worker. One that is idle must not die of a signal: it holds the lock of the queue, without
# which the others cannot end. Runs have handlers of their own.
_signals: list[int] = []


def _share(number: int, workers: int) -> list[int]:
    """Returns the cores of a worker: its share, or all where there are more workers than cores."""
    return cores()[number::workers] or cores()


def _start(numbers, parent: int) -> None:
    """Prepares a worker: its cores, what signals do to it, and an end with its parent."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: _signals.append(caught))
    mine = numbers.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, mine)
    use_compilation_cache()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    # A killed parent must not leave a run behind that the next start would run again.
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
