"""`--adapter` of commands, and `--draft`, `--cache-dtype` and `--cache-tokens` of the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.llm.saved import saved
from tests.llm.tuning.test_tuner import random_adapter
from tests.serve.llm.speaking import chat
from tests.serve.running import ask

import treadle.llm as llm
from treadle.cli import main
from treadle.cli.console import printable_text
from treadle.llm.tuning import Lora, write_adapter

SAID = ["--max-tokens", "6", "--context", "64"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def adapter(model: Path) -> Path:
    products = llm.load(model, context=16).model.stack.products()
    folder = model.parent / "tuned"
    write_adapter(folder, random_adapter(products, Lora(4, 64.0)))
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["llm", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_answers_are_those_of_the_adapter(
    model: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("run", "chat"):
        plain = said(capsys, command, model, "Who?", *SAID)
        tuned = said(capsys, command, model, "Who?", *SAID, "--adapter", adapter)
        assert plain != tuned
        both = llm.load(model, context=64, adapters={"a": adapter}).adapted("a")
        prompt = "Who?"
        if command == "chat":
            prompt = both.conversation([{"role": "user", "content": prompt}])
        assert tuned == printable_text(both.generate(prompt, max_tokens=6)) + "\n"


def test_adapters_that_do_not_fit(
    model: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = saved(tmp_path / "other", hidden_size=32)
    for source, folder, words in (
        (other, adapter, "belongs to another model"),
        (model, tmp_path, "adapter_config.json"),
        (model, tmp_path / "none", "adapter_config.json"),
    ):
        assert main(["llm", "run", str(source), "Who?", "--adapter", str(folder)]) == 1
        assert words in capsys.readouterr().err


class Served:
    """`treadle llm serve` as a process."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "treadle", "llm", "serve", *map(str, arguments)]
        self.running = subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        assert self.running.stdout is not None
        self.lines: list[str] = []
        while line := self.running.stdout.readline().strip():
            self.lines.append(line)
            if "http" in line:
                break
        self.port = int(self.lines[-1].rpartition("/")[0].rpartition(":")[2])


@pytest.fixture(scope="module")
def served(model: Path, adapter: Path) -> Iterator[Served]:
    options = ["--draft", model, "--cache-dtype", "bfloat16", "--adapter", f"tuned={adapter}"]
    made = Served(model, "--context", "64", "--cache-tokens", "128", *options)
    yield made
    made.running.terminate()
    made.running.communicate(timeout=30)


def test_a_server_with_draft_and_narrow_cache(served: Served, model: Path, adapter: Path) -> None:
    assert served.lines[1] == f"tuned of {adapter}: an adapter of small"
    assert [each["id"] for each in ask(served.port, "/v1/models").json["data"]] == [
        "small",
        "tuned",
    ]
    own = llm.load(model, context=64, cache_dtype="bfloat16", adapters={"tuned": adapter})
    asked = [{"role": "user", "content": "Who?"}]
    for name, which in (("small", None), ("tuned", "tuned")):
        found = chat(served.port, "Who?", model=name, max_tokens=6).json
        wanted = own.chat(asked, max_tokens=6, adapter=which)
        assert found["choices"][0]["message"]["content"] == wanted


def test_what_encoders_have_no_use_for(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = saved(tmp_path / "encoder", model_type="bert")
    cached = ("--cache-dtype", "bfloat16"), ("--cache-tokens", "640")
    for option, value in (("--draft", str(model)), *cached):
        assert main(["llm", "serve", str(encoder), option, value]) == 2
        assert "makes vectors" in capsys.readouterr().err


def test_merging(
    model: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = said(capsys, "run", model, "Who?", *SAID, "--adapter", adapter)
    for target in ("merged.gguf", "merged"):
        assert "bytes became" in said(capsys, "merge", model, adapter, tmp_path / target)
        assert said(capsys, "run", tmp_path / target, "Who?", *SAID) == tuned
    for given, status, words in (
        ((model, tmp_path, tmp_path / "a.gguf"), 1, "adapter_config.json"),
        ((tmp_path / "none", adapter, tmp_path / "a.gguf"), 1, "none"),
        ((model, adapter, tmp_path / "a.gguf", "--format", "Q9"), 2, "none that is written"),
    ):
        assert main(["llm", "merge", *map(str, given)]) == status
        assert words in capsys.readouterr().err
        assert not (tmp_path / "a.gguf").exists()
