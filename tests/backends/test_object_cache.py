"""Compiled code on disk: damage, strangers, races, limits."""

import grp
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from treadle.backends.object_cache import ObjectCache
from treadle.base.files.ownership import exposed, make_private

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


def test_an_entry_under_another_name_counts_as_absent(cache: ObjectCache) -> None:
    cache.put("k", DATA)
    cache.path("k").rename(cache.path("other"))
    assert cache.get("other") is None and cache.get("k") is None
    cache.put("k", DATA)
    assert cache.put("other", DATA[1:]) and cache.get("other") == DATA[1:]


def test_links_and_folders_are_not_followed(cache: ObjectCache, tmp_path: Path) -> None:
    cache.put("k", DATA)
    moved = tmp_path / "elsewhere"
    cache.path("k").rename(moved)
    cache.path("k").symlink_to(moved)
    assert cache.get("k") is None
    cache.path("d").mkdir()
    assert cache.get("d") is None
    assert not cache.put("d", DATA)


def group_of(monkeypatch: pytest.MonkeyPatch, name: str, *members: str) -> None:
    """Have every group this name and these members."""
    found = grp.struct_group((name, "x", 1, list(members)))
    monkeypatch.setattr(grp, "getgrgid", lambda number: found)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_others_may_write_to_is_not_used(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group_of(monkeypatch, "users")
    folder = tmp_path / "objects"
    ObjectCache(folder).put("k", DATA)
    folder.chmod(mode)
    refused(folder, "can be written by others", capsys)


def test_the_group_of_a_user_alone_is_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many systems make one, and have all that is made writable for it."""
    folder = tmp_path / "parent" / "objects"
    make_private(folder)
    name = pwd.getpwuid(os.geteuid()).pw_name
    for each in (folder, folder.parent):
        each.chmod(0o775)
        for group, problem in (((name,), False), ((name, name), False), ((name, "other"), True)):
            group_of(monkeypatch, *group)
            assert bool(exposed(folder)) is problem
        each.chmod(0o700)


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_nor_one_whose_parent_they_may_write_to(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "parent" / "objects"
    ObjectCache(folder).put("k", DATA)
    folder.parent.chmod(mode)
    group_of(monkeypatch, "users")
    refused(folder, "where others can put another", capsys)
    folder.parent.chmod(0o1777)
    assert not exposed(folder), "nobody renames what is another's under a sticky bit"


def test_nor_one_that_a_link_leads_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ObjectCache(tmp_path / "real").put("k", DATA)
    (tmp_path / "objects").symlink_to(tmp_path / "real")
    refused(tmp_path / "objects", "is a symbolic link", capsys)
    (tmp_path / "home").symlink_to(tmp_path)
    assert ObjectCache(tmp_path / "home" / "real").get("k") == DATA, "one's own link above it"


def refused(folder: Path, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A temporary cache takes the place of the folder, which stays as it is."""
    held = {p.name for p in folder.iterdir()}
    cache = ObjectCache(folder)
    assert cache.get("k") is None
    assert cache.put("other", DATA) and cache.get("other") == DATA
    elsewhere = cache.path("other").parent
    assert elsewhere.stat().st_mode & 0o777 == 0o700
    assert {p.name for p in folder.iterdir()} == held
    assert capsys.readouterr().err.count(problem) == 1
    del cache
    assert not elsewhere.exists()


def test_a_directory_of_somebody_else_is_not_used(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.put("k", DATA)
    other = ObjectCache(cache.path("k").parent)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert other.get("k") is None
    assert other.path("k").parent != cache.path("k").parent
    assert "belongs to" in capsys.readouterr().err


def test_a_directory_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = ObjectCache(blocked / "objects")
    assert cache.get("k") is None
    for _ in range(3):
        assert cache.put("k", DATA)
        assert cache.get("k") == DATA
    assert capsys.readouterr().err.count("cannot be made") == 1
    monkeypatch.setenv("TMPDIR", str(blocked))
    monkeypatch.setattr(tempfile, "tempdir", str(blocked))
    cache = ObjectCache(blocked / "objects")
    assert not cache.put("k", DATA) and cache.get("k") is None


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
