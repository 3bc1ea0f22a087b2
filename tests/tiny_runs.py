"""What the tests of whole runs share: tiny texts, tiny configs, and runners in forked processes.

Test modules and conftest files import the fixtures that they need from here.
"""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from compilation import environment

from attn_jax.config import Config, to_dict, with_fields
from attn_jax.training.loop import train
from attn_jax.validation import validate

ROOT = Path(__file__).parent.parent
TRAIN = "experiments.train"
TIME_KEYS = ("seconds", "tokens_per_s")
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SMALL = {
    "model.num_layers": 1,
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "data.name": "text_files",
    "data.length": 16,
    "data.batch_tokens": 64,
    "tokenizer.name": "byte",
    "optimizer.warmup_steps": 2,
    "optimizer.learning_rate": 0.02,
    "train.steps": 12,
    "train.log_every": 4,
    "train.eval_every": 6,
    "train.checkpoint_every": 5,
    "train.keep_checkpoints": 0,
    "eval.max_items": 16,
    "eval.shared_positions": 40,
}
# With dropout, so that a resumed run needs the right keys.
LM = {"model.dropout": 0.1}
TRANSLATION = {
    "eval.evaluators": "loss,translation",
    "model.architecture": "encoder_decoder",
    "objective.name": "translation",
    "data.name": "parallel_files",
    "data.length": 24,
    "data.batch_tokens": 96,
}


def sentence(i):
    return " ".join(WORDS[(i * 7 + j * j) % 10] for j in range(1 + i % 4))


class Tiny:
    """A folder of small files, and configs about them."""

    def __init__(self, folder: Path):
        self.folder = folder
        lines = [f"{i} {sentence(i)}" for i in range(150)]
        # Of two lengths: each shape of a batch of pairs costs a compilation.
        short = [f"{i:03} one" if i % 3 else f"{i:03} six two one" for i in range(150)]
        self.text = self._write("text.txt", lines)
        self.source = self._write("source.txt", short)
        self.target = self._write("target.txt", [line.upper() for line in short])

    def _write(self, name, lines):
        path = self.folder / name
        if not path.exists():
            path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    def fields(self, **changes):
        """Dotted fields of a tiny run; `__` stands for the dot, e.g. `train__steps=3`."""
        fields = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
        pairs = fields["data.name"] == "parallel_files"
        files = f"{self.source},{self.target}" if pairs else self.text
        where = {"data.train_files": files, "data.data_dir": str(self.folder / "data")}
        return where | fields

    def config(self, **changes) -> Config:
        return validate(with_fields(Config(), self.fields(**changes)))

    def config_file(self, path: Path, **changes) -> Path:
        """Writes a file as those of configs/."""
        values = to_dict(with_fields(Config(), self.fields(**changes)))
        path.write_text(
            "from attn_jax.config import from_dict\n\n\n"
            f"def get_config():\n    return from_dict({values!r})\n"
        )
        return path


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "tiny"
    folder.mkdir(exist_ok=True)  # another conftest has its own fixture but the same folder
    return Tiny(folder)


@pytest.fixture(scope="session")
def lm_run(tiny_data):
    """A finished run of a causal LM; shared, so tests must not change it."""
    workdir = tiny_data.folder / "lm_run"
    train(tiny_data.config(**LM), workdir)  # a finished run is left as it is
    return workdir


@pytest.fixture(scope="session")
def translation_run(tiny_data):
    """A finished run of an encoder-decoder; shared, so tests must not change it."""
    workdir = tiny_data.folder / "translation_run"
    train(tiny_data.config(**TRANSLATION), workdir)
    return workdir


@pytest.fixture
def train_command(tiny_data, tmp_path):
    """Returns a function that gives the arguments of a run, with flags and fields changed."""

    def make(*flags, **changes):
        file = tiny_data.config_file(tmp_path / "experiment.py", **changes)
        return (TRAIN, f"--config={file}", f"--workdir={tmp_path / 'run'}", *flags)

    return make


@pytest.fixture
def refused(run_module, tmp_path):
    """Runs a command that must be refused, and returns the line that it leaves."""

    def run(module, *args, **options):
        before = contents(tmp_path)
        done = run_module(module, *args, **options)
        assert done.status == 2, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stdout == ""
        assert contents(tmp_path) == before
        assert not (tmp_path / "run").exists()
        return done.stderr

    return run


def flag(name, value):
    return f"--config.{name}={value}"


def read_lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def without_times(lines):
    return [{k: v for k, v in line.items() if k not in TIME_KEYS} for line in lines]


def saved_state(workdir, step):
    """Everything in a checkpoint's state, as numpy."""
    with ocp.PyTreeCheckpointer() as reader:
        return jax.tree.map(
            np.asarray, reader.restore(workdir.absolute() / f"checkpoints/{step}/state")
        )


def same_tree(a, b):
    """Equal bit for bit."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def contents(folder):
    """Every file below a folder with its bytes and time of change, but those that Python caches."""
    found = (path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts)
    files = [path for path in found if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@dataclass(frozen=True)
class Result:
    """How a command ended; `status` is negative for a signal."""

    status: int
    stdout: str
    stderr: str


class Runners:
    """Runs `python -m MODULE ARGS` in forks of one process that has imported everything.

    Importing takes seconds, and JAX cannot be forked once it has touched a device: the process
    forked from never does.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            cwd=ROOT,
            env=os.environ | environment() | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, module: str, *args: object, before: str = "", stdin: str = "") -> Result:
        """Runs a module, or a file of Python; `before` is code that is run first."""
        self._count += 1
        paths = {k: str(self._folder / f"{self._count}.{k}") for k in ("stdin", "stdout", "stderr")}
        Path(paths["stdin"]).write_bytes(stdin.encode(errors="surrogateescape"))
        request = {
            "module": module,
            "args": list(map(str, args)),
            "before": textwrap.dedent(before),
        }
        print(json.dumps(request | paths), file=self._server.stdin, flush=True)
        status = json.loads(self._server.stdout.readline())
        outputs = [Path(paths[k]).read_text() for k in ("stdout", "stderr")]
        return Result(status, *outputs)

    def close(self):
        self._server.stdin.close()
        self._server.wait(timeout=20)


@pytest.fixture(scope="session")
def run_module(tmp_path_factory):
    """Runs a runner as a user would, but in a process whose imports are done."""
    folder = tmp_path_factory.mktemp("runners")
    runners = Runners(folder)
    yield runners
    runners.close()


def _serve():
    """Forks for each request on stdin, and answers with the exit status."""
    import importlib
    import runpy

    for name in (
        "attn_jax.launch",
        "attn_jax.comparison.report",
        "attn_jax.training.restore",
        "attn_jax.data.sources.text_files",
        "attn_jax.data.sources.parallel_files",
        "ml_collections.config_flags",
        "tensorboard.summary",
    ):
        importlib.import_module(name)
    answers = os.dup(1)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                flags = os.O_RDONLY if name == "stdin" else os.O_WRONLY | os.O_CREAT
                os.dup2(os.open(request[name], flags, 0o644), number)
            sys.argv = [request["module"], *request["args"]]
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
            status = 0
            try:
                exec(request["before"], {})
                is_file = request["module"].endswith(".py")
                run = runpy.run_path if is_file else runpy.run_module
                run(
                    request["module"],
                    run_name="__main__",
                    **({} if is_file else {"alter_sys": True}),
                )
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, f"{json.dumps(code)}\n".encode())


if __name__ == "__main__":
    _serve()
