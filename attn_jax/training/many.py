"""Trains several runs, on CPU one a core, under one progress bar."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import jax
from tqdm import tqdm

from attn_jax.config import Config
from attn_jax.data.pipeline import open_dataset
from attn_jax.errors import WorkError
from attn_jax.launch import use_compilation_cache
from attn_jax.training.loop import train
from attn_jax.training.metrics import read_metrics

POLL_SECONDS = 0.5


def train_all(runs: Sequence[tuple[Config, Path]], workers: int = 0) -> None:
    """Trains `(config, workdir)` runs; those that were stopped go on from their checkpoints.

    A small model cannot keep several cores busy: on two, 2 runs side by side take about 3/4 of
    the time of one after the other.

    Args:
      runs: validated configs and their run directories.
      workers: processes; 0 means one a core on CPU, and one on an accelerator.

    Raises:
      InputError, WorkError: as `train` does for the first run that fails; runs that have begun
        are stopped and saved.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not workers:
        workers = len(cores) if jax.default_backend() == "cpu" else 1
    workers = min(workers, len(runs))
    _prepare(runs)
    if workers <= 1:
        for number, (config, workdir) in enumerate(runs, 1):
            print(f"run {number} of {len(runs)}: {workdir}", flush=True)
            train(config, workdir)
        return
    context = get_context("spawn")
    numbers = context.Queue()
    for number in range(workers):
        numbers.put(cores[number::workers])
    os.environ["TQDM_DISABLE"] = "1"  # in the workers, which read it when they import tqdm
    options = {"mp_context": context, "initializer": _start, "initargs": (numbers, os.getpid())}
    with ProcessPoolExecutor(workers, **options) as pool, _stop_on_signal(pool) as stop:
        try:
            _watch(pool, runs, workers, stop)
        except BaseException:
            _terminate(pool)
            raise


def _prepare(runs: Sequence[tuple[Config, Path]]) -> None:
    """Prepares each data set once, before several processes would do it at the same time."""
    prepared = []
    for config, _ in runs:
        what = config.data, config.tokenizer, config.train.init_directory
        if what not in prepared:
            open_dataset(config)
            prepared.append(what)


def _watch(
    pool: ProcessPoolExecutor,
    runs: Sequence[tuple[Config, Path]],
    workers: int,
    stop: threading.Event,
) -> None:
    """Keeps all workers busy and shows steps done over all runs until all are finished."""
    waiting, futures = list(runs), []
    start = sum(_step(workdir) for _, workdir in runs)
    total = sum(config.train.steps for config, _ in runs)
    with tqdm(total=total, initial=start, unit="step", smoothing=0.02) as bar:
        while True:
            running = sum(not future.done() for future in futures)
            # Never more than there are workers: a queued run would begin after a stop.
            while waiting and running < workers and not stop.is_set():
                futures.append(pool.submit(train, *waiting.pop(0)))
                running += 1
            bar.n = sum(_step(workdir) for _, workdir in runs)
            bar.set_description(f"{len(futures) - running} of {len(runs)} runs done")
            _raise_failure(futures, stop)
            if not running:
                return
            time.sleep(POLL_SECONDS)


def _raise_failure(futures: list[Future], stop: threading.Event) -> None:
    if stop.is_set() and all(future.done() for future in futures):
        raise WorkError("stopped by a signal; the same command goes on from what is saved")
    for error in (future.exception() for future in futures if future.done()):
        if error is None or stop.is_set():
            continue
        if isinstance(error, BrokenProcessPool):
            raise WorkError(
                "a training process was ended from outside (out of memory?); finished runs are "
                "kept, and the same command goes on with the others"
            ) from error
        raise error


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


def _start(numbers, parent: int) -> None:
    """Prepares a worker: its cores, and an end with its parent."""
    cores = numbers.get()
    if cores:
        os.sched_setaffinity(0, cores)
    use_compilation_cache()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    # A killed parent must not leave a run behind that the next start would run again.
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
