import os

import pytest

from attn_jax.errors import InputError
from attn_jax.files import read_json, read_json_lines, write_whole


def test_links_are_followed_and_devices_are_written_to(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    neighbor = tmp_path / "target.partial"
    neighbor.write_text("mine")
    write_whole(link, "new")
    assert (link.is_symlink(), target.read_text(), neighbor.read_text()) == (True, "new", "mine")
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    write_whole(device, "gone")
    assert device.is_symlink()
    assert not device.resolve().is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "link",
        "null",
        "target",
        "target.partial",
    ]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "new", []

    def fsync(number):
        seen.append((os.fstat(number).st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, "text")
    assert seen == [(4, False)]
    assert path.read_text() == "text"


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_broken_json_is_named(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InputError, match=f"^{path}: not valid JSON"):
        read_json(path)
    path.write_text(f"{{}}\n{text}\n{{}}\n")
    with pytest.raises(InputError, match=f"^{path}:2: not valid JSON"):
        read_json_lines(path)
