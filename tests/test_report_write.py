"""Output files: whole or not at all, asked for beforehand, one line when it cannot be."""

import errno
import gzip
import os
from pathlib import Path

import pytest

from ridgeline.base.errors import BadOutput
from ridgeline.report.write import check_writable, write


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    check_writable(path)
    assert list(tmp_path.iterdir()) == []  # asking leaves no trace
    write(path, "erst\n")
    write(str(path), "zweite Fassung: µs\n")
    assert path.read_text(encoding="utf-8") == "zweite Fassung: µs\n"
    assert list(tmp_path.iterdir()) == [path]


def test_compressed_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    write(path, "{}\n")
    first = path.read_bytes()
    assert gzip.decompress(first) == b"{}\n"
    write(path, "{}\n")
    assert path.read_bytes() == first  # no time stamp inside


def test_mode_follows_the_umask_or_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "out"
    old = os.umask(0o027)
    try:
        write(path, "a")
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    write(path, "b")
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    check_writable(link)
    write(link, "new")
    assert link.is_symlink() and target.read_text() == "new"


BAD = {
    "no folder": ("missing/out.json", "there is no folder"),
    "a folder": ("folder", "it is a folder"),
    "a file as folder": ("file/out.json", "not a directory"),
    "name too long": ("x" * 300, "file name too long"),
    "null": ("a\0b", "null"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_written_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    given, why = BAD[name]
    path = f"{tmp_path}/{given}"
    before = sorted(tmp_path.rglob("*"))
    for call in (lambda: check_writable(path), lambda: write(path, "text")):
        with pytest.raises(BadOutput) as caught:
            call()
        message = str(caught.value)
        assert message.startswith(f"cannot write {path}: ") and why in message and "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    path.write_text("kept")
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for another user's file; root may write all
    with pytest.raises(BadOutput, match="it is read-only"):
        check_writable(path)
    with pytest.raises(BadOutput, match="it is read-only"):
        write(path, "new")
    assert path.read_text() == "kept"


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadOutput, match="no space left on device"):
        write(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_devices_and_pipes_are_written_in_place(tmp_path: Path) -> None:
    check_writable("/dev/null")
    write("/dev/null", "gone")
    assert not Path("/dev/null").is_file()
    with pytest.raises(BadOutput, match="no space left"):
        write("/dev/full", "x")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)  # opens nothing, so it does not wait for a reader
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
