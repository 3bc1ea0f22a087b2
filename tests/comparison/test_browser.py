"""The report in a browser: no error, every picture, no sideways scrolling, tables that copy."""

import csv
import html
import io
import json
import re
import shutil
import subprocess

import pytest

from attn_jax.comparison.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = (400, 1400)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium"),
]

# Shows the report in a frame of one width, opens all of it, copies its first table to a clipboard
# of our own, and writes down what it finds.
PROBE = """<!DOCTYPE html><body>
<iframe style="width: WIDTHpx; height: 900px" srcdoc="REPORT"></iframe>
<script>
const frame = document.querySelector("iframe");
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
onload = async () => {
  const page = frame.contentDocument, view = frame.contentWindow, copied = [];
  for (const details of page.querySelectorAll("details")) details.open = true;
  view.navigator.clipboard.writeText = async (text) => { copied.push(text); };
  for (const button of page.querySelector(".copy").querySelectorAll("button")) button.click();
  await wait(100);
  const boxes = [...page.querySelectorAll("svg, img")].map((x) => x.getBoundingClientRect());
  const text = [...page.querySelectorAll("p, li, summary")];
  const found = {
    errors: view.errors, copied, bars: page.querySelectorAll(".copy").length,
    tables: page.querySelectorAll("table:has(thead)").length,
    width: page.documentElement.scrollWidth, pictures: boxes.map((x) => [x.width, x.height]),
    right: Math.max(...boxes.map((x) => x.right)),
    smallest: Math.min(...text.map((x) => parseFloat(view.getComputedStyle(x).fontSize))),
  };
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
};
</script>"""

WATCH = """<script>
window.errors = [];
addEventListener("error", (event) => errors.push(event.message), true);
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
console.error = console.warn = (...words) => errors.push(words.join(" "));
</script>"""


def show(report, folder, width):
    """Opens a report in a browser without network and returns what the probe found."""
    page = folder / f"probe-{width}.html"
    watched = report.replace("<head>", f"<head>{WATCH}", 1)
    probe = PROBE.replace("WIDTH", str(width)).replace("REPORT", html.escape(watched))
    page.write_text(probe, encoding="utf-8")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",  # tests may run as root
        "--disable-gpu",
        "--proxy-server=127.0.0.1:9",  # nothing answers there
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width + 100},1000",
        "--virtual-time-budget=5000",
        "--enable-logging=stderr",
        "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(html.unescape(found[1])) | {"console": console}


@pytest.fixture(scope="module")
def report(tmp_path_factory, collected):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    write_report(path, collected)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown(report, tmp_path_factory):
    return {width: show(report, tmp_path_factory.mktemp("shown"), width) for width in WIDTHS}


@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_without_errors_and_with_every_picture(shown, report, width):
    found = shown[width]
    assert (found["errors"], found["console"]) == ([], [])
    assert len(found["pictures"]) >= report.count("<svg")
    drawn = [size for size in found["pictures"] if size[0] > 150]
    assert len(drawn) == report.count("<svg")
    assert all(height > 100 for _, height in drawn)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_never_scrolls_sideways(shown, width):
    assert shown[width]["width"] <= width
    assert shown[width]["right"] <= width
    assert shown[width]["smallest"] >= 12


def test_tables_copy_as_markdown_latex_and_csv(shown, collected):
    found = shown[1400]
    assert found["bars"] == found["tables"] > 6
    markdown, latex, text = found["copied"]
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0][:2] == ["arm", "bits per token, own view"]
    assert [row[0] for row in rows[1:]] == collected["masking"]["arms"]
    assert len({len(row) for row in rows}) == 1
    lines = markdown.splitlines()
    assert lines[0] == f"| {' | '.join(rows[0])} |"
    assert lines[1] == f"|{' --- |' * len(rows[0])}"
    assert len(lines) == len(rows) + 1
    first = latex.splitlines()
    assert first[0] == r"\begin{tabular}{l" + "r" * (len(rows[0]) - 1) + "}"
    assert first[-1] == r"\end{tabular}"
    assert r"$\pm$" in first[3]
    assert first[3].endswith(r"\\")


def test_the_probe_sees_errors_and_what_is_too_wide(report, tmp_path):
    broken = report.replace("</footer>", "</footer><script>nothing.here()</script>", 1)
    broken = broken.replace("<h1>", '<h1 style="width: 900px">', 1)
    found = show(broken, tmp_path, 400)
    assert "nothing is not defined" in found["errors"][0]
    assert found["width"] > 400
