"""Models from directories and git repositories on this machine; nothing here needs a network."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle import hub
from treadle.base.errors import CheckpointError
from treadle.base.files.download import DownloadError
from treadle.hub import trust

HUBCONF = '''"""A repository."""
import parts

dependencies = ["numpy"]
_private = print


def scale(factor=2, *, offset=0):
    """Multiplies."""
    return lambda x: parts.product(x, factor) + offset


def broken():
    raise KeyError("inside")


def lazy():
    import late
    return late.VALUE


VALUE = 3
'''


def run_git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, files: dict[str, str], message: str = "x") -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", message)
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TREADLE_HUB_TRUST", raising=False)
    # Modules of a repository stay imported, as with any import.
    for name in ("parts", "late"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--initial-branch=master")
    files = {"hubconf.py": HUBCONF, "parts.py": "def product(a, b): return a * b\n"}
    commit(folder, {**files, "late.py": "VALUE = 7\n"})
    yield folder
    for name in ("parts", "late"):
        sys.modules.pop(name, None)


def test_a_local_directory_needs_no_trust(repo: Path) -> None:
    before = list(sys.path)
    assert hub.list(repo) == ["broken", "lazy", "scale"]
    assert hub.help(str(repo), "scale") == "Multiplies."
    assert hub.load(repo, "scale", 3, offset=1)(5) == 16
    assert hub.load(repo, "lazy") == 7
    assert hub.import_module(repo).VALUE == 3
    assert sys.path == before
    assert not (repo / "__pycache__").exists()


def test_a_git_repository_runs_only_with_trust(repo: Path, home: Path) -> None:
    url = repo.as_uri()
    with pytest.raises(hub.UntrustedRepo, match=r"(?s)nobody has agreed.*trust_repo=True"):
        hub.list(url)
    with pytest.raises(hub.UntrustedRepo):
        hub.load(url, "scale", trust_repo=False)
    assert "parts" not in sys.modules
    assert hub.load(url, "scale", trust_repo=True)(5) == 10
    # Saying so in one call is no trust for the next.
    with pytest.raises(hub.UntrustedRepo):
        hub.help(url, "scale")


def test_trust_by_environment(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_HUB_TRUST", "github.com/other/one")
    with pytest.raises(hub.UntrustedRepo):
        hub.list(repo.as_uri())
    for named in (str(repo), f"x, {repo.parent}/*", "*"):
        monkeypatch.setenv("TREADLE_HUB_TRUST", named)
        assert "scale" in hub.list(repo.as_uri())
    with pytest.raises(hub.UntrustedRepo):
        hub.list(repo.as_uri(), trust_repo=False)


class Terminal:
    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.said = ""

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self.answer

    def write(self, text: str) -> int:
        self.said += text
        return len(text)

    def flush(self) -> None:
        pass


def test_trust_at_a_terminal_is_remembered(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sit_down(answer: str) -> Terminal:
        terminal = Terminal(answer)
        monkeypatch.setattr(trust.sys, "stdin", terminal)
        monkeypatch.setattr(trust.sys, "stderr", terminal)
        return terminal

    for refusal in ("", "\n", "n\n", "maybe\n"):
        sit_down(refusal)
        with pytest.raises(hub.UntrustedRepo):
            hub.list(repo.as_uri())
    terminal = sit_down("Yes\n")
    assert "scale" in hub.list(repo.as_uri())
    assert f"code from {repo}" in terminal.said and "[y/N]" in terminal.said
    quiet = sit_down("n\n")
    assert "scale" in hub.list(repo.as_uri()) and quiet.said == ""


def test_what_is_cached_works_offline_and_use_cache_false_looks_again(repo: Path) -> None:
    url = repo.as_uri()
    assert hub.import_module(url, trust_repo=True).VALUE == 3
    commit(repo, {"hubconf.py": "VALUE = 4\n"})
    assert hub.import_module(url, trust_repo=True).VALUE == 3
    assert hub.import_module(url, use_cache=False, trust_repo=True).VALUE == 4
    assert hub.import_module(url, trust_repo=True).VALUE == 4
    away = repo.with_name("away")
    repo.rename(away)
    assert hub.import_module(url, trust_repo=True).VALUE == 4
    with pytest.raises(hub.GitPullError, match=r"(?s)cannot be reached.*works offline"):
        hub.import_module(url, use_cache=False, trust_repo=True)


def test_branches_tags_and_commits(repo: Path) -> None:
    first = run_git(repo, "rev-parse", "HEAD")
    run_git(repo, "tag", "--annotate", "--message=x", "v1")
    run_git(repo, "checkout", "--quiet", "-b", "next/one")
    second = commit(repo, {"hubconf.py": "VALUE = 8\n"})
    run_git(repo, "checkout", "--quiet", "master")
    url = repo.as_uri()

    def value(text: str, **options: Any) -> int:
        found: int = hub.import_module(text, trust_repo=True, **options).VALUE
        return found

    assert (value(url), value(f"{url}#v1"), value(f"{url}#next/one")) == (3, 3, 8)
    assert value(url, commit=second) == 8 and value(url, commit=second[:8]) == 8
    assert value(url, commit=first, use_cache=False) == 3
    with pytest.raises(hub.GitPullError, match="no branch or tag 'gone'"):
        value(f"{url}#gone")
    with pytest.raises(hub.GitCheckoutError, match="no commit"):
        value(url, commit="0123456789")
    with pytest.raises(hub.GitCheckoutError, match="no commit"):
        value(url, commit="0" * 40)


def test_a_commit_that_no_branch_holds_any_more(repo: Path) -> None:
    lost = commit(repo, {"hubconf.py": "VALUE = 9\n"})
    run_git(repo, "reset", "--quiet", "--hard", "HEAD~1")
    run_git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    assert hub.import_module(repo.as_uri(), commit=lost, trust_repo=True).VALUE == 9


def test_the_other_sides_choice_where_there_is_no_master(repo: Path) -> None:
    run_git(repo, "branch", "--move", "master", "main")
    assert hub.import_module(repo.as_uri(), trust_repo=True).VALUE == 3


def cached(home: Path) -> Path:
    (folder,) = (path for path in (home / "hub").glob("*/*") if (path / "hubconf.py").exists())
    return folder


def test_cached_files_that_changed_are_refused(repo: Path, home: Path) -> None:
    url = repo.as_uri()
    hub.list(url, trust_repo=True)
    folder = cached(home)
    assert not (folder / ".git").exists()
    for damage in (
        lambda: (folder / "hubconf.py").write_text("VALUE = 666\n"),
        lambda: (folder / "numpy.py").write_text("evil = 1\n"),
        lambda: (folder / "parts.py").unlink(),
    ):
        damage()
        with pytest.raises(hub.FetcherError, match=r"(?s)differ from those.*use_cache=False"):
            hub.list(url, trust_repo=True)
        assert "scale" in hub.list(url, use_cache=False, trust_repo=True)
    # Bytecode that somebody's import left there is neither trusted nor a reason to refuse.
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "parts.cpython-311.pyc").write_bytes(b"evil")
    assert "scale" in hub.list(url, trust_repo=True)
    assert not (folder / "__pycache__").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside"])
def test_links_that_lead_out_are_refused(target: str, repo: Path, home: Path) -> None:
    (repo / "link").symlink_to(target)
    commit(repo, {})
    with pytest.raises(hub.InvalidRepo, match="leads out of the repository"):
        hub.list(repo.as_uri(), trust_repo=True)
    assert not list((home / "hub").glob("*/*/hubconf.py"))


def test_links_inside_and_a_linked_hubconf(repo: Path, tmp_path: Path) -> None:
    (repo / "again.py").symlink_to("parts.py")
    commit(repo, {})
    assert "scale" in hub.list(repo.as_uri(), trust_repo=True)
    (repo / "hubconf.py").rename(tmp_path / "elsewhere.py")
    (repo / "hubconf.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(hub.InvalidRepo, match="leads out"):
        hub.list(repo)


def test_no_program_of_the_repository_runs_while_it_is_fetched(
    repo: Path, home: Path, tmp_path: Path
) -> None:
    commit(repo, {".gitattributes": "*.py filter=evil\n"})
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[filter "evil"]\n smudge = touch {tmp_path}/evil\n')
    (tmp_path / "hooks").mkdir()
    hook = tmp_path / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/evil\n")
    hook.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", str(settings))
        # As inside a hook of some other repository.
        patch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
        patch.setenv("GIT_WORK_TREE", str(tmp_path / "nowhere"))
        assert "scale" in hub.list(repo.as_uri(), trust_repo=True)
    assert not (tmp_path / "evil").exists()


def test_a_cache_that_anybody_may_write_to(repo: Path, home: Path) -> None:
    (home / "hub").mkdir(parents=True)
    (home / "hub").chmod(0o777)
    with pytest.raises(hub.FetcherError, match="anybody may write"):
        hub.list(repo.as_uri(), trust_repo=True)


def test_a_fetch_that_fails_leaves_nothing(repo: Path, home: Path) -> None:
    with pytest.raises(hub.GitCheckoutError):
        hub.list(repo.as_uri(), commit="0" * 40, trust_repo=True)
    assert [path for path in (home / "hub").glob("*/*")] == []


def test_entries_that_are_missing(repo: Path) -> None:
    for name in ("nothing", "VALUE"):
        with pytest.raises(RuntimeError, match=f"Cannot find callable {name} in hubconf.py"):
            hub.load(repo, name)
    with pytest.raises(hub.HubError, match="there is broken, lazy, scale"):
        hub.help(repo, "nothing")
    with pytest.raises(KeyError, match="inside"):
        hub.load(repo, "broken")
    (repo / "hubconf.py").write_text("dependencies = ['numpy', 'no_such_thing']\ndef f(): pass\n")
    assert hub.list(repo) == ["f"]
    with pytest.raises(RuntimeError, match="Missing dependencies: no_such_thing"):
        hub.load(repo, "f")
    (repo / "hubconf.py").unlink()
    with pytest.raises(hub.HubError, match=r"no hubconf\.py"):
        hub.list(repo)


def test_without_git(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(hub.FetcherError, match="git is not installed"):
        hub.list(repo.as_uri(), trust_repo=True)


def test_tools(repo: Path, tmp_path: Path) -> None:
    assert hub.check_module_exists("json") and not hub.check_module_exists("no.such.thing")
    assert hub.load_module("x", repo / "late.py").VALUE == 7
    with pytest.raises(hub.HubError, match="not a Python file"):
        hub.load_module("x", repo / "none.py")
    before = Path.cwd()
    with hub.cd(tmp_path):
        assert Path.cwd() == tmp_path.resolve()
    assert Path.cwd() == before


# ── weights ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "server" / "net.safetensors"
    path.parent.mkdir()
    layer = mge.module.Linear(3, 2)
    layer.weight[:] = 5
    mge.save(layer.state_dict(), path)
    return path


def test_weights_are_kept_and_checked(weights: Path, home: Path) -> None:
    named = hub.name_with_digest(weights)
    assert named.stem.startswith("net-") and len(named.stem) == 12 and named.exists()
    assert hub.name_with_digest(named) == named
    loaded = hub.load_serialized_obj_from_url(named.as_uri())
    (kept,) = (home / "serialized").iterdir()
    assert kept.name.endswith(f"_{named.name}")
    content = named.read_bytes()
    named.unlink()
    again = hub.load_serialized_obj_from_url(named.as_uri())
    np.testing.assert_array_equal(again["weight"], loaded["weight"])
    kept.write_bytes(content + b"x")
    with pytest.raises(DownloadError, match=r"(?s)not the file.*delete the file"):
        hub.load_serialized_obj_from_url(named.as_uri())


def test_weights_that_are_others(weights: Path, tmp_path: Path) -> None:
    wrong = weights.with_name("net-00000000.safetensors")
    shutil.copy(weights, wrong)
    folder = tmp_path / "models"
    for arguments in ({}, {"sha256": "12345678"}):
        with pytest.raises(DownloadError, match="not the file"):
            hub.load_serialized_obj_from_url(wrong.as_uri(), folder, **arguments)
        assert os.listdir(folder) == []
    with pytest.raises(DownloadError, match="download failed"):
        hub.load_serialized_obj_from_url(weights.with_name("gone").as_uri(), folder)
    with pytest.raises(DownloadError, match="https, http or file"):
        hub.load_serialized_obj_from_url("ftp://example.org/x.bin", folder)
    for url in ("https://example.org/", "https://example.org/a/.."):
        with pytest.raises(hub.HubError, match="names no file"):
            hub.load_serialized_obj_from_url(url, folder)
    with pytest.raises(hub.HubError, match="sha256 is malformed"):
        hub.load_serialized_obj_from_url(weights.as_uri(), folder, sha256="12")


def test_pickled_weights_do_not_run(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"weight": np.ones(3)}))
    assert hub.load_serialized_obj_from_url(path.as_uri())["weight"].tolist() == [1, 1, 1]
    path = tmp_path / "y.pkl"
    path.write_bytes(pickle.dumps({"weight": print}))
    with pytest.raises(CheckpointError, match=r"the pickle names 'builtins\.print'"):
        hub.load_serialized_obj_from_url(path.as_uri())


def test_pretrained(weights: Path) -> None:
    @hub.pretrained(weights.as_uri())
    def linear(outputs: int = 2) -> Any:
        """A layer."""
        return mge.module.Linear(3, outputs)

    assert linear.__doc__ == "A layer."
    np.testing.assert_array_equal(linear(pretrained=True).weight.numpy(), np.full((2, 3), 5))
    assert linear(outputs=4).weight.shape == (4, 3)
    assert (linear().weight.numpy() != 5).all()


def test_the_command_that_names_weights(weights: Path) -> None:
    command = [sys.executable, "-m", "treadle.hub", "name-weights", str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).exists() and not weights.exists()
