"""Files line by line: nothing out of its place, nothing lost by a stop."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from attn_jax.decoding import lines
from attn_jax.errors import InputError, WorkError

TEXT = "b\n\nccc\naaaaaaaaa\n \nbb\nccc\na\n"
WRITTEN = "B!\n\nCCC!\n\n\nBB!\nCCC!\nA!\n"


class Shouter:
    """A worker of 6 letters at most that writes in capital letters, the shortest line first."""

    limit = 6

    def __init__(self, last=99):
        self.last = last  # texts before it is stopped
        self.asked = []

    def read(self, text):
        return list(text)

    def check(self, text):
        """Takes any line."""

    def length(self, ids):
        return len(ids)

    def cut(self, ids):
        return ids[: self.limit]

    def write(self, texts):
        for number in sorted(texts, key=lambda number: len(texts[number])):
            if not self.last:
                raise KeyboardInterrupt
            self.last -= 1
            self.asked.append(number)
            yield number, "".join(texts[number]).upper() + "!"


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(lines, "WINDOW", 3)


@pytest.fixture
def call(tmp_path):
    """Returns a function that writes output.txt from input.txt."""
    (tmp_path / "input.txt").write_text(TEXT)

    def write(writer, truncate=False, output=tmp_path / "output.txt", **settings):
        lines.write_file(writer, str(tmp_path / "input.txt"), str(output), truncate, settings)

    return write


@pytest.mark.parametrize("text", [TEXT, TEXT.rstrip("\n"), "\ufeff" + TEXT.replace("\n", "\r\n")])
def test_every_line_keeps_its_place(call, tmp_path, text):
    (tmp_path / "input.txt").write_text(text, newline="")
    writer = Shouter()
    call(writer)
    assert (tmp_path / "output.txt").read_text() == WRITTEN
    assert writer.asked == [0, 2, 5, 7, 6]  # in each window of 3 the shortest first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["input.txt", "output.txt"]


def test_a_wrong_line_is_named_before_any_work_is_done(call, capsys):
    class Picky(Shouter):
        def check(self, text):
            if text == "bb":
                raise InputError("expected another letter")

    worker = Picky()
    with pytest.raises(InputError, match=r"^line 6: expected another letter$"):
        call(worker, output="-")
    assert worker.asked == []
    assert capsys.readouterr() == ("", "")


def test_stdout_gets_the_same_in_order(call, capsys):
    call(Shouter(), output="-")
    assert capsys.readouterr().out == WRITTEN


def test_a_pipe_gets_the_same_in_order(call, tmp_path):
    """It cannot be replaced, and nothing is left beside it."""
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_text)
        call(Shouter(), output=tmp_path / "pipe")
        assert read.result() == WRITTEN
    call(Shouter(), output="/dev/null")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["input.txt", "pipe"]


def test_stdout_is_streamed_window_by_window(call, capsys):
    with pytest.raises(KeyboardInterrupt):
        call(Shouter(2), output="-")
    assert capsys.readouterr().out == "B!\n\nCCC!\n\n\n"


def test_lines_that_are_too_long_are_named_and_left_empty_or_cut(call, tmp_path, capsys):
    call(Shouter())
    warning = "warning: line 4: 9 tokens, and the model reads 6: "
    assert f"{warning}left empty; --truncate cuts it\n" in capsys.readouterr().err
    call(Shouter(), truncate=True)
    assert f"{warning}cut\n" in capsys.readouterr().err
    assert (tmp_path / "output.txt").read_text() == WRITTEN.replace("!\n\n\nBB", "!\nAAAAAA!\n\nBB")


@pytest.mark.parametrize("last", range(5))
@pytest.mark.parametrize("cut_short", [False, True])
def test_a_stop_loses_no_finished_line(call, tmp_path, last, cut_short):
    output, progress = tmp_path / "output.txt", tmp_path / "output.txt.progress"
    with pytest.raises(WorkError, match=f" of 8 lines are in {progress}, and the same command"):
        call(Shouter(last))
    assert not output.exists()
    if cut_short:
        with progress.open("a") as file:
            file.write('{"number": 7, "te')
    writer = Shouter()
    call(writer)
    assert output.read_text() == WRITTEN
    assert writer.asked == [0, 2, 5, 7, 6][last:]
    assert not progress.exists()


def test_finished_lines_stay_until_the_output_is_there(call, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(lines, "write_whole", full)
        with pytest.raises(OSError, match="no space"):
            call(Shouter())
    again = Shouter()
    call(again)
    assert (again.asked, (tmp_path / "output.txt").read_text()) == ([], WRITTEN)


def test_an_old_output_stays_until_the_new_one_is_whole(call, tmp_path):
    (tmp_path / "output.txt").write_text("old\n")
    with pytest.raises(WorkError, match="the same command goes on"):
        call(Shouter(2))
    assert (tmp_path / "output.txt").read_text() == "old\n"


def test_the_progress_of_another_call_is_refused(call, tmp_path):
    with pytest.raises(WorkError, match="the same command goes on"):
        call(Shouter(2), max_new=3, steps=[5])
    for changes, said in (
        ({"max_new": 4}, "max_new = 3 there and 4 here"),
        ({"steps": [6]}, r"steps = \[5\] there and \[6\] here"),
        ({"truncate": True}, "truncate = False there and True here"),
    ):
        with pytest.raises(InputError, match=f"of another call, {said}; remove it"):
            call(Shouter(), **{"max_new": 3, "steps": [5], **changes})
    (tmp_path / "input.txt").write_text(TEXT + "more\n")
    with pytest.raises(InputError, match="of another call, input = "):
        call(Shouter(), max_new=3, steps=[5])
    kept = (tmp_path / "output.txt.progress").read_text().splitlines()
    assert [json.loads(line)["number"] for line in kept[1:]] == [1, 0, 2, 3, 4]


@pytest.mark.parametrize(
    "entry",
    [
        {"text": "B!"},
        {"number": "0", "text": "B!"},
        {"number": True, "text": "B!"},
        {"number": -1, "text": "B!"},
        {"number": 8, "text": "B!"},
        {"number": 0},
        {"number": 0, "text": None},
        {"number": 0, "text": "B!\nC!"},
        {"number": 0, "text": "\ud800"},
    ],
)
def test_progress_that_was_edited_by_hand_is_refused_by_line(call, tmp_path, entry):
    with pytest.raises(WorkError):
        call(Shouter(1))
    progress = tmp_path / "output.txt.progress"
    settings, *kept = progress.read_text().splitlines(keepends=True)
    edited = "".join((settings, kept[0], json.dumps(entry) + "\n", *kept[1:]))
    progress.write_text(edited)
    with pytest.raises(InputError) as refusal:
        call(Shouter())
    said = str(refusal.value)
    assert said.startswith(f"{progress}:3: {json.dumps(entry)} is no finished line, expected ")
    assert '"number": 0 to 7' in said
    assert "\n" not in said
    assert progress.read_text() == edited
    assert not (tmp_path / "output.txt").exists()


def test_the_input_is_not_written_over(call, tmp_path):
    (tmp_path / "link.txt").symlink_to(tmp_path / "input.txt")
    for output in (tmp_path / "input.txt", tmp_path / "link.txt"):
        with pytest.raises(InputError, match="is the input, which it would replace"):
            call(Shouter(), output=output)
    assert (tmp_path / "input.txt").read_text() == TEXT


def test_two_calls_at_once_do_not_write_one_file(call, tmp_path):
    class Nested(Shouter):
        def write(self, texts):
            with pytest.raises(InputError, match=r"output\.txt\.progress: another process"):
                call(Shouter())
            yield from super().write(texts)

    call(Nested())
    assert (tmp_path / "output.txt").read_text() == WRITTEN


def test_a_file_of_something_else_is_not_taken_for_progress(call, tmp_path):
    (tmp_path / "output.txt.progress").write_text("chapter one")
    with pytest.raises(InputError, match="is in the way"):
        call(Shouter())
    assert (tmp_path / "output.txt.progress").read_text() == "chapter one"


@pytest.mark.parametrize(
    ("text", "written"), [("", ""), ("\n\n", "\n\n"), ("a\rb\nc\n", "A B!\nC!\n")]
)
def test_as_many_lines_come_out_as_went_in(call, tmp_path, text, written):
    """A lone carriage return ends no line beside others that do, as for `wc -l`."""
    (tmp_path / "input.txt").write_text(text, newline="")
    call(Shouter())
    assert (tmp_path / "output.txt").read_text() == written
