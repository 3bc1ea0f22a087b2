"""The only training loop: from a config to a finished run directory."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jaxtyping import Array

from attn_jax.config import Config
from attn_jax.data.pipeline import Dataset, open_dataset
from attn_jax.data.tokenizers import FILE as TOKENIZER_FILE
from attn_jax.data.tokenizers import load_tokenizer
from attn_jax.errors import DivergedError, WorkError
from attn_jax.evaluation.evaluators import Evaluation, refuse_unfit, split_items
from attn_jax.files import write_whole
from attn_jax.models.kernels import check_kernel
from attn_jax.models.transformer import build_model
from attn_jax.objectives import make_objective
from attn_jax.progress import progress_bar
from attn_jax.training.checkpoints import Checkpoints, has_checkpoint
from attn_jax.training.initial import Start, read_start
from attn_jax.training.ledger import (
    count_parameters,
    flops_per_token,
    order_fingerprint,
    read_tokens,
)
from attn_jax.training.metrics import MetricsLog, refuse_missing_wandb
from attn_jax.training.optimizers import make_optimizer, make_schedule
from attn_jax.training.parallel import make_parallel
from attn_jax.training.reporter import Reporter, Totals, refuse_not_finite
from attn_jax.training.run_directory import (
    DIVERGED,
    eval_path,
    finished_ledger,
    is_claimed,
    items_path,
    locked,
    note_divergence,
    open_run,
    refuse_diverged,
    refuse_held,
)
from attn_jax.training.state import TrainState, new_state, split_model
from attn_jax.training.step import StepSpec


def train(config: Config, workdir: Path, retry: bool = True) -> dict[str, Any]:
    """Trains, or goes on with, the run in `workdir`, and evaluates it at the end.

    The resume rules: (1) a directory of another config, or of other data, is refused; (2) the
    newest whole checkpoint is restored: state, iterator, totals; where there is none, training
    begins, with fresh parameters or with those of `train.init_from`; (3) lines of metrics.jsonl
    after it are dropped; (4) the steps go on as if nothing had happened, bit for bit; (5) a
    finished run is left as it is.

    Args:
      config: validated.
      workdir: the run directory, made if need be.
      retry: whether a run that has diverged is tried again from its last checkpoint.

    Returns:
      The ledger.

    Raises:
      InputError: config, data or directory are wrong; nothing was written to the directory.
      HeldError: another process is training there.
      DivergedError: the loss is not finite; says what was saved.
      WorkError: a signal stopped the run; says what was saved.
    """
    workdir = Path(workdir)
    with _end_on_signal(workdir):
        return _train(config, workdir, retry)


def _train(config: Config, workdir: Path, retry: bool) -> dict[str, Any]:
    open_run(workdir, config)
    if config.train.wandb:
        refuse_missing_wandb()
    check_kernel(config.model)
    ledger = _settled(config, workdir, retry)
    if ledger is not None:
        return ledger
    if jax.process_index() == 0 and is_claimed(workdir):
        refuse_held(workdir)  # before all that takes time
    stored = workdir / "tokenizer"
    saved = (stored / TOKENIZER_FILE).exists()  # a kill may have left an empty folder
    start = None
    if config.train.init_from and not has_checkpoint(workdir):
        start = read_start(config, workdir)
    dataset = open_dataset(config, load_tokenizer(stored) if saved else None)
    run = _Run(config, workdir, dataset, start)  # reads all files that the config names
    # The other processes of a distributed run share the directory with the first.
    with locked(workdir) if jax.process_index() == 0 else nullcontext():
        open_run(workdir, config, dataset.fingerprint)
        ledger = _settled(config, workdir, retry)  # by another process meanwhile
        if ledger is not None:
            return ledger
        if not saved:
            dataset.tokenizer.save(stored)
        (workdir / DIVERGED).unlink(missing_ok=True)
        if start is not None:
            start.record(workdir)
        return run.run()


def _settled(config: Config, workdir: Path, retry: bool) -> dict[str, Any] | None:
    """Returns the ledger of a finished run; refuses one that has diverged unless `retry` is set."""
    ledger = finished_ledger(workdir, config.train.steps)
    if ledger is None and not retry:
        refuse_diverged(workdir)
    return ledger


class _Run:
    """One start of the loop: everything that does not change from step to step."""

    def __init__(self, config: Config, workdir: Path, dataset: Dataset, start: Start | None):
        self.config, self.workdir, self.dataset = config, workdir, dataset
        tokenizer = dataset.tokenizer
        self.objective = make_objective(config.objective, tokenizer.vocabulary)
        refuse_unfit(config, dataset, self.objective)  # before the model takes its time
        model = build_model(config.model, tokenizer.vocab_size, config.train.seed)
        self.graph, params = split_model(model)
        self.params = params if start is None else start.params
        self.optimizer = make_optimizer(config.optimizer, config.train.steps)
        self.parallel = make_parallel(config.train.parallel)
        spec = StepSpec(self.graph, self.objective, self.optimizer, config)
        self.step = self.parallel.compile(spec)
        self.evaluation = Evaluation(config, dataset, self.objective, self.graph)
        self.texts = self._texts()
        self.is_main = jax.process_index() == 0

    def run(self) -> dict[str, Any]:
        """Restores, trains, evaluates, and writes the ledger."""
        t = self.config.train
        state, totals = new_state(self.params, self.optimizer, t.seed), Totals()
        with Checkpoints(self.workdir, t) as checkpoints:
            if checkpoints.latest is not None:
                state, totals = checkpoints.restore(state, self.texts)
            start = int(state.step)
            log = MetricsLog(self.workdir, start, t.wandb) if self.is_main else None
            shown = {} if self.is_main else {"disable": True}  # else TQDM_DISABLE decides
            name = "/".join(self.workdir.parts[-2:])
            with progress_bar(t.steps, start, "step", desc=name, **shown) as bar:
                rate = make_schedule(self.config.optimizer, t.steps)
                reporter = Reporter(log, rate, totals, bar)
                try:
                    state = self._loop(state, start, checkpoints, reporter)
                except FloatingPointError as error:
                    advice = self._advice(error, checkpoints.latest)
                    if self.is_main:
                        note_divergence(self.workdir, advice)
                    raise DivergedError(advice) from error
                finally:
                    if log is not None:
                        log.close()
        return self._finish(state, totals)

    def _advice(self, error: FloatingPointError, latest: int | None) -> str:
        saved = f"the checkpoint of step {latest} is good" if latest else "nothing was saved"
        return (
            f"{error}; {saved} in {self.workdir}; go on in another workdir with a lower "
            f"optimizer.learning_rate (it was {self.config.optimizer.learning_rate:g}) or with "
            f"optimizer.clip_norm (it was {self.config.optimizer.clip_norm:g})"
        )

    def _loop(
        self,
        state: TrainState,
        start: int,
        checkpoints: Checkpoints,
        reporter: Reporter,
    ) -> TrainState:
        t = self.config.train
        state = self.parallel.put_state(state)
        with _stop_on_signal() as stop:
            for step in range(start + 1, t.steps + 1):
                text = next(self.texts)
                reporter.totals.tokens += read_tokens(text) * jax.process_count()
                state, sums = self.step(state, self.parallel.put_batch(text))
                reporter.flush()  # the line before this step
                last = step == t.steps
                stopping = self._agree(stop.is_set(), step)
                if last or step % t.log_every == 0:
                    reporter.queue(step, self.parallel.get(sums))
                if last or (t.eval_every and step % t.eval_every == 0):
                    self._evaluate_curve(step, state, reporter)
                if last or stopping or step % t.checkpoint_every == 0:
                    self._save(step, state, sums, checkpoints, reporter)
                reporter.advance()
                if stopping and not last:
                    raise WorkError(
                        f"stopped by a signal after step {step} of {t.steps}; a checkpoint is in "
                        f"{self.workdir}/checkpoints, and the same command goes on from there"
                    )
        return state

    def _texts(self) -> Iterator:
        """Returns this process's share of the training batches, endless."""
        count, index = jax.process_count(), jax.process_index()
        return iter(self.dataset.train_batches(self.config.train.seed, index, count))

    def _agree(self, stop: bool, step: int) -> bool:
        """Tells whether any process was told to stop; asks the others only at logged steps."""
        if jax.process_count() == 1:
            return stop
        if step % self.config.train.log_every:
            return False
        return bool(np.any(multihost_utils.process_allgather(np.array(stop))))

    def _evaluate_curve(self, step: int, state: TrainState, reporter: Reporter) -> None:
        reporter.flush()
        params = self.parallel.get(state.params)
        numbers = self.evaluation.curve(params)
        reporter.write(step, self.config.eval.split, numbers)
        reporter.skip_time()

    def _save(self, step, state, sums, checkpoints, reporter) -> None:
        reporter.flush()
        state = self.parallel.get(state)
        # The sums are those of the parameters before this step, so these are looked at too.
        norm = {"parameters": _norm(state.params)}
        refuse_not_finite(step, self.parallel.get(sums) | norm)
        reporter.totals.seconds = reporter.seconds()
        checkpoints.save(state, self.texts, reporter.totals)
        reporter.skip_time()

    def _finish(self, state: TrainState, totals: Totals) -> dict[str, Any]:
        params = self.parallel.get(state.params)
        steps = self.config.train.steps
        results, items = split_items(self.evaluation.run(params))
        total, non_embedding = count_parameters(self.params)
        ledger = {
            "finished": True,
            "step": steps,
            "parameters": total,
            "parameters_non_embedding": non_embedding,
            "tokens_seen": totals.tokens,
            "loss_bearing_tokens": round(totals.targets),
            "training_flops": self._flops_per_token() * totals.tokens,
            "seconds": round(totals.seconds, 1),
            "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
            "padding_share": self.dataset.padding_share,
            "data_fingerprint": self.dataset.fingerprint,
            "tokenizer_fingerprint": self.dataset.tokenizer.fingerprint,
            "order_fingerprint": order_fingerprint(
                self.dataset.train_batches(self.config.train.seed)
            ),
        }
        if self.is_main:
            eval_path(self.workdir, steps).parent.mkdir(exist_ok=True)
            write_whole(items_path(self.workdir, steps), json.dumps(items) + "\n")
            record = {"step": steps, "results": results}
            write_whole(eval_path(self.workdir, steps), json.dumps(record) + "\n")
            write_whole(self.workdir / "ledger.json", json.dumps(ledger, indent=2) + "\n")
        return ledger

    def _flops_per_token(self) -> float:
        key = jax.random.key(self.config.train.seed)
        return flops_per_token(self.config.model, self.params, self.objective, self._texts(), key)


@jax.jit
def _norm(params: dict) -> Array:
    return optax.tree.norm(params)


@contextmanager
def _end_on_signal(workdir: Path) -> Iterator[None]:
    """Turns SIGTERM and SIGINT into a WorkError: for what comes before and after the steps."""

    def end(*_: object) -> None:
        raise WorkError(
            f"stopped by a signal before the first step or after the last one; what {workdir} "
            "holds is whole, and the same command goes on"
        )

    with _on_signal(end):
        yield


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """Turns SIGTERM and SIGINT into an event, so that a step is never cut in two."""
    stop = threading.Event()
    with _on_signal(lambda *_: stop.set()):
        yield stop


@contextmanager
def _on_signal(handler: Callable) -> Iterator[None]:
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
