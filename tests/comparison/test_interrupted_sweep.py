"""A sweep that is killed again and again, by processes that share it, ends as if undisturbed."""

import json
import random
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from tiny_runs import LM, Runners, Tiny, run_module

from attn_jax.config import to_dict
from attn_jax.files import read_json

STUDY = """
from attn_jax.comparison.arms import Study
from attn_jax.config import from_dict


def get_config():
    return Study(
        name="tiny",
        base=from_dict({base!r}),
        arms={{
            "causal": {{"objective.name": "causal_lm"}},
            "prefix": {{"objective.name": "prefix_lm"}},
        }},
        declared=("objective.name",),
        grid={{"optimizer.learning_rate": (0.01, 0.05, 1e30)}},
    )
"""
RUNS = 2 * 3 + 2 * 2  # two arms: three points with one seed, then two seeds

# Notes in a file what was done to its end, and keeps what this process reports.
WATCH = """
    import os, random, signal, threading
    from attn_jax.comparison import collect, report
    from attn_jax.training import loop

    def note(workdir):
        with open("{notes}", "a") as file:
            file.write(f"{{workdir}}\\n")

    finish, diverge = loop._Run._finish, loop.note_divergence
    write_json, write_html = collect.write_comparison, report.write_report

    def finish_and_note(self, *args):
        ledger = finish(self, *args)
        note(self.workdir)
        return ledger

    def diverge_and_note(workdir, message):
        diverge(workdir, message)
        note(workdir)

    def write_copies(write):
        def both(path, collected):
            write(path, collected)
            write(path.with_name(f"{{os.getpid()}}.{{path.name}}"), collected)
        return both

    loop._Run._finish, loop.note_divergence = finish_and_note, diverge_and_note
    collect.write_comparison = write_copies(write_json)
    report.write_report = write_copies(write_html)
"""

# Ends the process a moment after one of its steps.
KILL = """
    read, left = loop.read_tokens, {steps}

    def read_and_die(text):
        global left
        left -= 1
        if not left:
            threading.Timer({delay}, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return read(text)

    loop.read_tokens = read_and_die
"""


def numbers_of(root):
    """comparison.json as text, without what depends on the clock."""

    def clean(value):
        if isinstance(value, dict):
            return {k: clean(v) for k, v in value.items() if k not in ("seconds", "tokens_per_s")}
        return [clean(x) for x in value] if isinstance(value, list) else value

    return json.dumps(clean(read_json(root / "comparison.json")))


def ledgers(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("seed-*/ledger.json"))


@pytest.mark.slow
def test_kills_and_two_processes_change_nothing(run_module, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    file, root, notes = (tmp_path / name for name in ("study.py", "runs", "notes"))
    fields = {"optimizer.name": "sgd", "optimizer.clip_norm": 0.0}
    file.write_text(STUDY.format(base=to_dict(Tiny(data).config(**LM | fields))))
    command = ("experiments.compare", f"--config={file}", f"--workdir={root}", "--workers=1")

    done = run_module(*command)
    assert done.status == 0, done.stderr
    assert "tuned causal: optimizer.learning_rate = 0.05\n" in done.stdout
    undisturbed = root.rename(tmp_path / "undisturbed")
    assert len(ledgers(undisturbed)) == RUNS - 2  # two points diverge
    for cached in data.glob("data"):
        cached.rename(tmp_path / "old")  # so that two processes prepare it at once, too

    other, rng = Runners(tmp_path / "other"), random.Random(0)
    watch = WATCH.format(notes=notes)

    def start(kill):
        """Starts two processes at once; returns how they ended."""
        kills = [
            KILL.format(steps=rng.randint(1, 8), delay=rng.uniform(0, 0.3)) if kill else ""
            for _ in range(2)
        ]
        with ThreadPoolExecutor(2) as pool:
            begin = lambda run, kill: run(*command, before=watch + kill)  # noqa: E731
            return list(pool.map(begin, (run_module, other), kills))

    for _ in range(3):
        assert [done.status for done in start(kill=True)] == [-signal.SIGKILL] * 2
    assert not (root / "comparison.json").exists()
    ended = start(kill=False)
    other.close()
    assert [done.status for done in ended] == [0, 0], [done.stderr for done in ended]

    times = Counter(notes.read_text().splitlines())
    assert set(times.values()) == {1}
    assert len(times) >= RUNS - 6  # a kill may come between the end of a run and its note
    assert ledgers(root) == ledgers(undisturbed)
    assert numbers_of(root) == numbers_of(undisturbed)
    for name in ("comparison.json", "report.html"):
        written = {path.read_bytes() for path in root.glob(f"*{name}")}
        assert len(list(root.glob(f"*.{name}"))) == 2
        assert len(written) == 1
