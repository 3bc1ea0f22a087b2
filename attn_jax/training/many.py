"""Trains several runs, on CPU one a core, under one progress bar."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import jax
from tqdm import tqdm

from attn_jax.config import Config
from attn_jax.data.pipeline import open_dataset
from attn_jax.errors import WorkError
from attn_jax.files import read_json_lines
from attn_jax.launch import use_compilation_cache
from attn_jax.training.loop import train

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
    with ProcessPoolExecutor(workers, **options) as pool:
        futures = [pool.submit(train, config, workdir) for config, workdir in runs]
        before = _on_signals(lambda *_: _stop(pool, futures))
        try:
            _watch(runs, futures)
        except BaseException:
            _stop(pool, futures)
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _prepare(runs: Sequence[tuple[Config, Path]]) -> None:
    """Prepares each data set once, before several processes would do it at the same time."""
    prepared = []
    for config, _ in runs:
        if (config.data, config.tokenizer) not in prepared:
            open_dataset(config)
            prepared.append((config.data, config.tokenizer))


def _watch(runs: Sequence[tuple[Config, Path]], futures: list[Future]) -> None:
    """Shows steps done over all runs until all are finished, or one has failed."""
    total = sum(config.train.steps for config, _ in runs)
    start = sum(_step(workdir) for _, workdir in runs)
    with tqdm(total=total, initial=start, unit="step", smoothing=0.02) as bar:
        while True:
            over = all(future.done() for future in futures)
            bar.n = sum(_step(workdir) for _, workdir in runs)
            done = sum(future.done() for future in futures)
            bar.set_description(f"{done} of {len(runs)} runs done")
            _raise_failure(futures)
            if over:
                return
            time.sleep(POLL_SECONDS)


def _raise_failure(futures: list[Future]) -> None:
    for future in futures:
        if future.cancelled() or not future.done() or future.exception() is None:
            continue
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise WorkError(
                "a training process was ended from outside (out of memory?); finished runs are "
                "kept, and the same command goes on with the others"
            ) from error
        raise error
    if any(future.cancelled() for future in futures):
        raise WorkError("stopped by a signal; the same command goes on from what is saved")


def _step(workdir: Path) -> int:
    lines = read_json_lines(workdir / "metrics.jsonl")
    return lines[-1]["step"] if lines else 0


def _on_signals(handler) -> dict:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {n: signal.signal(n, handler) for n in (signal.SIGTERM, signal.SIGINT)}


def _stop(pool: ProcessPoolExecutor, futures: list[Future]) -> None:
    """Lets running runs save themselves, and the others never begin."""
    for future in futures:
        future.cancel()
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
