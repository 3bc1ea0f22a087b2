"""What docs/decoding.md shows can be run as it stands there, one piece after the other."""

import re

import pytest
from tiny_runs import ROOT, tiny_data, translation_run

SNIPPET = re.compile(r"\n\n((?:(?:    .*)?\n)+)")  # indented lines and empty ones between them


@pytest.mark.slow
def test_the_snippets_run(translation_run, capsys):
    found = SNIPPET.findall((ROOT / "docs/decoding.md").read_text())
    python = [text for text in found if re.match(r"    (from|import|eos, pad) ", text)]
    ours = [text for text in python if "ctranslate2" not in text]
    assert len(ours) == 5
    names = {}
    for text in ours:
        code = re.sub("^    ", "", text, flags=re.MULTILINE)
        exec(code.replace("runs/translate", str(translation_run)), names)
    assert capsys.readouterr().out.count("\n") == 1
    assert names["ids"].shape == (2, 64)
    assert names["found"].ids.shape == (2, 3, 64)
    assert names["told"].log_probs.shape == (2, 64)
    assert names["told"].attention.shape[2] == 2
