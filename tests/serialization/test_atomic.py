"""Saving when things go wrong: kills, full disks, limits, odd targets."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from treadle.base.files import atomic
from treadle.serialization import load, save


def test_killed_fifty_times(tmp_path: Path) -> None:
    script = Path(__file__).parent / "kill_during_save.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path, "50"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["steps"] == sorted(report["steps"])
    assert report["steps"][-1] > 0
    # The kills did land inside saves, no try added to the debris, the last save cleared it.
    assert report["leftovers"] == 1
    assert report["files"] == ["state.treadle"]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_file_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    save("old", path)
    with (
        file_size_limit(65536),
        pytest.raises(OSError, match=r"cannot save: .*; 8\d{5} bytes are needed") as caught,
    ):
        save(np.zeros(100_000), path)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(path)
    assert load(path) == "old"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_failing_system_calls(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for full and read-only file systems, which need privileges to make."""
    path = tmp_path / "x"
    save("old", path)

    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code), "internal name")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="cannot save") as caught:
            save("new", path)
    assert (caught.value.errno, caught.value.filename) == (code, str(path))
    assert ("bytes are needed" in str(caught.value)) == (code == errno.ENOSPC)
    assert load(path) == "old"
    assert os.listdir(tmp_path) == ["x"]
    save("new", path)
    assert load(path) == "new"


def test_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save("new", tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_file_and_directory_are_forced_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle: int) -> None:
        events.append("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def record_replace(source: str, target: str) -> None:
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    save("x", tmp_path / "x")
    assert events == ["file", "rename", "directory"]


def test_missing_directory(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "x"
    with pytest.raises(FileNotFoundError) as caught:
        save("x", path)
    assert caught.value.filename == str(path)


def test_modes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    old = os.umask(0o027)
    try:
        save("x", path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        save("y", path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(old)


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "x"
    link = tmp_path / "link"
    link.symlink_to(target)
    save("dangling", link)
    save("existing", link)
    assert link.is_symlink()
    assert load(target) == "existing"
    assert os.listdir(tmp_path / "real") == ["x"]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="symbolic links"):
        save("x", loop)


def test_targets_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        save("x", tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    address = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        for path in (pipe, address, Path("/dev/null")):
            with pytest.raises(OSError, match="not a regular file"):
                save("x", path)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_only_stale_files_are_swept(tmp_path: Path) -> None:
    prefix, other = atomic._prefix("x"), atomic._prefix("y")
    dead = dead_process()
    stale = [f"{prefix}{dead}.0123abcd.tmp", f"{prefix}{os.getpid()}.0123abcd.tmp"]
    kept = [
        f"{prefix}{os.getppid()}.0123abcd.tmp",
        f"{other}{dead}.0123abcd.tmp",
        f".x.another-machine.{dead}.0123abcd.tmp",
        f"{prefix}{dead}.tmp",
        "x.tmp",
    ]
    for name in stale + kept:
        (tmp_path / name).touch()
    save("new", tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == sorted(["x", *kept])


def test_long_names(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    save("x", path)
    assert load(path) == "x"


def test_temporary_name_carries_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    replace = os.replace

    def record(source: str, target: str) -> None:
        names.append(os.path.basename(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    save("x", tmp_path / "x")
    assert re.fullmatch(rf"\.x\.[A-Za-z0-9-]*\.{os.getpid()}\.[0-9a-f]{{8}}\.tmp", names[0])
