"""Compiled code on disk: damage, strangers, races, limits."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from treadle.backends.object_cache import ObjectCache

DATA = bytes(range(256)) * 40


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "a" / "objects")


def test_what_is_written_is_read(cache: ObjectCache) -> None:
    assert cache.get("k") is None
    assert cache.put("k", DATA)
    assert cache.get("k") == DATA
    assert cache.put("k", b"")
    assert cache.get("k") == b""
    folder = cache.path("k").parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in folder.iterdir()] == ["k"]


@pytest.mark.parametrize("cut", [0, 1, 39, 40, 41, 1000, len(DATA) + 39])
def test_truncated_files_count_as_absent(cache: ObjectCache, cut: int) -> None:
    cache.put("k", DATA)
    os.truncate(cache.path("k"), cut)
    assert cache.get("k") is None
    assert cache.put("k", DATA)
    assert cache.get("k") == DATA


@pytest.mark.parametrize("at", [0, 5000, -1, -35, -40])
def test_a_flipped_bit_counts_as_absent(cache: ObjectCache, at: int) -> None:
    cache.put("k", DATA)
    content = bytearray(cache.path("k").read_bytes())
    content[at] ^= 4
    cache.path("k").write_bytes(content)
    assert cache.get("k") is None


def test_links_and_folders_are_not_followed(cache: ObjectCache, tmp_path: Path) -> None:
    cache.put("k", DATA)
    moved = tmp_path / "elsewhere"
    cache.path("k").rename(moved)
    cache.path("k").symlink_to(moved)
    assert cache.get("k") is None
    cache.path("d").mkdir()
    assert cache.get("d") is None
    assert not cache.put("d", DATA)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_others_may_write_to_is_not_used(
    tmp_path: Path, mode: int, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ObjectCache(tmp_path)
    tmp_path.chmod(0o700)
    good.put("k", DATA)
    tmp_path.chmod(mode)
    cache = ObjectCache(tmp_path)
    assert cache.get("k") is None
    assert not cache.put("other", DATA)
    assert not cache.put("other", DATA)
    assert capsys.readouterr().err.count("can be written by others") == 1


def test_a_directory_of_somebody_else_is_not_used(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.put("k", DATA)
    other = ObjectCache(cache.path("k").parent)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert other.get("k") is None
    assert not other.put("k", DATA)
    assert "belongs to" in capsys.readouterr().err


def test_a_directory_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = ObjectCache(blocked / "objects")
    for _ in range(3):
        assert not cache.put("k", DATA)
        assert cache.get("k") is None
    assert capsys.readouterr().err.count("cannot be made") == 1


def test_a_full_disk_leaves_no_debris(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.put("k", DATA)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not cache.put("other", DATA)
    assert cache.get("k") == DATA
    assert [p.name for p in cache.path("k").parent.iterdir()] == ["k"]
    assert capsys.readouterr().err.count("No space left") == 1


def test_the_files_unused_for_longest_go_first(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    cache = ObjectCache(tmp_path, limit=3 * (len(DATA) + 40))
    now = time.time()
    for age, key in enumerate("abcde"):
        cache.put(key, DATA)
        os.utime(cache.path(key), (now, now - 90_000 * (age + 1)))
    assert cache.get("e") == DATA  # reading renews
    stale, fresh = tmp_path / ".partial-1-a", tmp_path / ".partial-2-b"
    stale.write_bytes(DATA)
    os.utime(stale, (now, now - 90_000))
    fresh.write_bytes(DATA)
    cache.sweep()
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b", "e", fresh.name}


WRITER = """
    import sys
    from pathlib import Path
    from treadle.backends.object_cache import ObjectCache
    cache = ObjectCache(Path(sys.argv[1]))
    print("ready", flush=True)
    round = 0
    while True:
        round += 1
        for key in range(8):
            cache.put(str(key), bytes([key]) * 300_000)
            got = cache.get(str(key))
            assert got is None or got == bytes([key]) * 300_000, len(got)
        print(round, flush=True)
"""


def test_writers_that_are_killed_and_writers_at_the_same_time(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(folder)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for writer in writers:
        assert writer.stdout is not None
        for _ in range(4):
            assert writer.stdout.readline()
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert writer.returncode == -signal.SIGKILL
    cache = ObjectCache(folder)
    for key in range(8):
        assert cache.get(str(key)) in (None, bytes([key]) * 300_000)
        assert cache.put(str(key), DATA)
        assert cache.get(str(key)) == DATA
