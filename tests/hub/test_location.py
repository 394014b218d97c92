"""Names of repositories, and tricks with them."""

from pathlib import Path

import pytest

from treadle.hub import InvalidGitHost, InvalidProtocol, InvalidRepo
from treadle.hub.location import Repository, parse


def parsed(
    text: str, host: str = "github.com", commit: str | None = None, protocol: str = "HTTPS"
) -> Repository:
    place = parse(text, host, commit, protocol)
    assert isinstance(place, Repository)
    return place


def test_names_on_a_host() -> None:
    plain = parsed("MegEngine/Models")
    assert plain == Repository("https://github.com/MegEngine/Models.git", None, None)
    assert parsed("a/b:hub").ref == "hub" and parsed("a/b:release/1.0").ref == "release/1.0"
    assert parsed("a/b", "git.example.org").url == "https://git.example.org/a/b.git"
    assert parsed("a/b", "10.0.0.7", protocol="SSH").url == "ssh://git@10.0.0.7/a/b.git"
    assert parsed("a/b", commit="ABCDEF1").commit == "abcdef1"


def test_urls() -> None:
    place = parsed("ssh://git@example.org:2222/a/b.git#v1.0")
    assert (place.url, place.ref) == ("ssh://git@example.org:2222/a/b.git", "v1.0")
    assert parsed("file:///srv/git/a").url == "file:///srv/git/a"


def test_one_identity_for_every_protocol() -> None:
    ways = [
        parsed("a/b"),
        parsed("a/b", protocol="SSH"),
        parsed("https://github.com/a/b"),
        parsed("https://me@GitHub.com/a/b.git#x"),
    ]
    assert {way.identity for way in ways} == {"github.com/a/b"}
    assert len({way.key for way in ways}) == 1
    assert parsed("a/c").key != parsed("b/c").key


def test_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "repo").mkdir()
    for text in ("./repo", str(tmp_path / "repo"), "~/repo", "../" + tmp_path.name + "/repo"):
        place = parse(text, "github.com", None, "HTTPS")
        assert isinstance(place, Path) and place.samefile(tmp_path / "repo")
    assert parse(Path("repo"), "github.com", None, "HTTPS") == tmp_path / "repo"
    with pytest.raises(InvalidRepo, match="not a directory"):
        parse("./none", "github.com", None, "HTTPS")
    with pytest.raises(InvalidRepo, match="without a commit"):
        parse("./repo", "github.com", "abcdef1", "HTTPS")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "a/b/c",
        "a/b:",
        "a/..",
        "../a/b/..",
        "-a/b",
        "a/-b",
        "a/b c",
        "a/b;touch x",
        "a/b\n",
        "a/$(x)",
        "a/b:--upload-pack=touch x",
        "a/b:-x",
        "a/b:../c",
        "a/b:x..y",
        "a/b:x@{1}",
        "a/b:x//y",
        "a/b:x/",
        "a/b:.x",
        "a/b:x.lock",
        "a/b:x y",
        "https://github.com/a/b?x=1",
        "https://github.com/../b",
        "https://github.com/a/%2e%2e/b",
        "https://github.com/a/b%0a",
        "https://github.com/",
        "file:///a/../b",
        "https://github.com/a/b#-x",
    ],
)
def test_malformed_names(text: str) -> None:
    with pytest.raises(InvalidRepo):
        parse(text, "github.com", None, "HTTPS")


@pytest.mark.parametrize(
    "host",
    ["", "-oProxyCommand=x", "a b.com", "localhost", "x.com/", "256.1.1.1", "x.com:22", "a..b"],
)
def test_malformed_hosts(host: str) -> None:
    with pytest.raises(InvalidGitHost):
        parse("a/b", host, None, "HTTPS")


@pytest.mark.parametrize(
    "url",
    [
        "ssh://-oProxyCommand=x/a/b",
        "https:///a/b",
        "file://host/a/b",
        "https://a b/c",
        "ssh://a:x/b",
    ],
)
def test_malformed_hosts_in_urls(url: str) -> None:
    with pytest.raises(InvalidGitHost):
        parse(url, "github.com", None, "HTTPS")


@pytest.mark.parametrize(
    "commit", ["", "abc", "-abcdef1", "HEAD~100", "abcdefg", "a" * 65, "abcdef1 "]
)
def test_malformed_commits(commit: str) -> None:
    with pytest.raises(InvalidRepo, match="commit"):
        parse("a/b", "github.com", commit, "HTTPS")


def test_protocols() -> None:
    for protocol in ("HTTP", "https", ""):
        with pytest.raises(InvalidProtocol, match="one of HTTPS, SSH"):
            parse("a/b", "github.com", None, protocol)
    for url in ("http://x.com/a/b", "ext::sh -c x://a", "git://x.com/a/b", "ftp://x.com/a/b"):
        with pytest.raises(InvalidProtocol):
            parse(url, "github.com", None, "HTTPS")
