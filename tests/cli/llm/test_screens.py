"""What people see of `treadle llm`: help, progress, ends in the middle, and mistakes in words."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.llm.terminal import in_terminal
from tests.llm.files.models import LAYERS, MODELS, VOCABULARY
from tests.llm.files.test_gguf_checkpoint import TOKENS
from tests.llm.saved import TEMPLATE, saved

import treadle.llm as llm
from treadle.cli import main
from treadle.cli.console import printable_text
from treadle.cli.llm import COMMANDS
from treadle.llm.generation import LanguageModel
from treadle.llm.generation.text_stream import TextStream

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "small")


@pytest.mark.parametrize("command", [each.name for each in COMMANDS])
def test_help_fits_into_80_columns(
    command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["llm", command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"treadle llm {command}" in shown and "--help" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_a_file_holds(tmp_path: Path, capsys: Captured) -> None:
    made = MODELS["llama"]()
    path = made.write(tmp_path / "a.gguf", form="Q8_0", **TOKENS)
    assert main(["llm", "info", str(path)]) == 0
    shown = capsys.readouterr().out
    facts = dict(line.split(maxsplit=1) for line in shown.split("\n\n")[0].splitlines())
    numbers = sum(each.size for each in made.wanted.values())
    assert facts["family"] == "llama" and facts["parameters"] == f"{numbers:,}"
    assert facts["vocabulary"] == str(VOCABULARY) and facts["tokenizer"].startswith("gpt2")
    assert facts["conversations"] == "yes"
    weights = {row[0]: row for row in map(str.split, shown.splitlines()) if row and "_" in row[0]}
    assert weights["Q8_0"][-1] == "8.50"  # 32 bytes and a scale of 16 bits
    assert re.search(rf"(?:F32|float32) +{2 * LAYERS + 1} ", shown)


# -- files that are wrong ------------------------------------------------------------------------


def changed(**changes: object) -> Callable[[Path], Path]:
    """A directory whose config says something else than its weights."""

    def make(folder: Path) -> Path:
        path = saved(folder / "model") / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return path.parent

    return make


def without(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = saved(folder / "model")
        (path / name).unlink()
        return path

    return make


def cut(folder: Path, part: float) -> Path:
    whole = MODELS["llama"]().write(folder / "whole.gguf", **TOKENS).read_bytes()
    path = folder / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * part)])
    return path


ROPE = {"rope_type": "spiral", "factor": 2}
WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "truncated": (lambda folder: cut(folder, 0.5), "outside of the file"),
    "truncated early": (lambda folder: cut(folder, 0.01), "truncated"),
    "missing": (lambda folder: folder / "none.gguf", "none.gguf"),
    "empty directory": (lambda folder: folder, "no weights"),
    "without weights": (without("model.safetensors"), "no weights"),
    "without config": (without("config.json"), "config.json"),
    "other extents": (changed(hidden_size=48), "another shape than the config says"),
    "more layers": (changed(num_hidden_layers=9), "is missing"),
    "rotation": (changed(rope_scaling=ROPE), "'spiral' is unknown"),
    "family": (changed(model_type="mamba9"), "'mamba9' is unknown"),
    "too large": (changed(hidden_size=10**12), "hidden_size"),
}
LATE = ("other extents", "more layers", "rotation", "family", "too large")
"""What only those notice that compute with the model."""


@pytest.mark.parametrize("command", ["run", "chat", "bench", "perplexity", "serve", "finetune"])
@pytest.mark.parametrize("what", WRONG)
def test_files_that_are_wrong(command: str, what: str, tmp_path: Path, capsys: Captured) -> None:
    make, words = WRONG[what]
    path, text = make(tmp_path), tmp_path / "text"
    text.write_text('{"text": "to be learned"}\n')
    more: dict[str, list[object]] = {
        "run": [path, "Hi"],
        "chat": [path, "Hi"],
        "bench": [path],
        "perplexity": [path, text],
        "serve": [path, "--port", "0"],
        "finetune": [text, "--model", path, "--output", tmp_path / "tuned"],
    }
    refused(command, more[command], words, capsys)


@pytest.mark.parametrize("command", ["info", "convert", "quantize", "merge"])
@pytest.mark.parametrize("what", [each for each in WRONG if each not in LATE])
def test_files_that_cannot_be_read(
    command: str, what: str, tmp_path: Path, capsys: Captured
) -> None:
    make, words = WRONG[what]
    path, target = make(tmp_path), tmp_path / "target.gguf"
    rest = {"info": [], "convert": [target], "quantize": [target], "merge": [tmp_path, target]}
    refused(command, [path, *rest[command]], words, capsys)
    assert not target.exists()


def refused(command: str, arguments: list[object], words: str, capsys: Captured) -> None:
    assert main(["llm", command, *map(str, arguments)]) == 1
    shown = capsys.readouterr()
    assert words in shown.err and shown.out == ""
    assert "fault of Treadle" not in shown.err and len(shown.err) < 800


def test_models_without_a_tokenizer_or_template(tmp_path: Path, capsys: Captured) -> None:
    refused("run", [without("tokenizer.json")(tmp_path), "Hi"], "put tokenizer.json", capsys)
    base = saved(tmp_path / "base", template=None)
    refused("chat", [base, "Hi"], "treadle llm run", capsys)
    hostile = saved(tmp_path / "hostile", template="{{ raise_exception('never') }}")
    refused("chat", [hostile, "Hi"], "never", capsys)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["run", "", "--context", "64"], 1, "no tokens"),
        (["run", "x" * 600], 1, "longer than the model's context"),
        (["run", "Hi", "--context", "4"], 2, "--context"),
        (["run", "Hi", "--temperature", "-1"], 2, "--temperature"),
        (["run", "Hi", "--temperature", "nan"], 2, "--temperature"),
        (["run", "Hi", "--top-p", "2"], 2, "--top-p"),
        (["run", "Hi", "--dtype", "int3"], 2, "'stored'"),
        (["run", "Hi", "--lookup", "9"], 2, "--lookup"),
        (["run", "Hi", "--draft", "none.gguf"], 1, "none.gguf"),
        (["run"], 2, "TEXT"),
        (["chat", "Hi", "more"], 2, "more"),
        (["perplexity", "none.txt"], 1, "none.txt"),
        (["perplexity", __file__, "--window", "1024"], 1, "1024 tokens, the model has 512"),
    ],
)
def test_arguments_that_are_wrong(
    model: Path, arguments: list[str], status: int, words: str, capsys: Captured
) -> None:
    command, *rest = arguments
    try:
        found = main(["llm", command, str(model), *rest])
    except SystemExit as end:
        found = int(end.code or 0)
    assert found == status
    shown = capsys.readouterr().err
    assert words in re.sub(r"[│\s]+", " ", shown) and "fault of Treadle" not in shown


# -- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["مرحبا", "नमस्ते", "世界 🙂", "a\udcffb", "\x00\x1b[2J"])
def test_prompts_in_any_script(model: Path, text: str, capsys: Captured) -> None:
    for command in ("run", "chat"):
        assert main(["llm", command, str(model), text, "--max-tokens", "2"]) == 0
        assert "2 tokens" in capsys.readouterr().err


def test_input_that_is_no_utf_8(
    model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (["run", str(model), "-"], ["chat", str(model)]):
        given = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="ascii")
        monkeypatch.setattr(sys, "stdin", given)
        assert main(["llm", *arguments, "--max-tokens", "2"]) == 0
        assert "2 tokens" in capsys.readouterr().err


def test_what_the_model_says_does_not_move_the_cursor(model: Path, capsys: Captured) -> None:
    """A random model says any byte."""
    for seed in range(5):
        more = ["--max-tokens", "40", "--temperature", "9", "--seed", str(seed)]
        assert main(["llm", "run", str(model), "Hi", *more]) == 0
        assert all(c.isprintable() or c in "\n\t" for c in capsys.readouterr().out)


def test_who_reads_has_read_enough(model: Path) -> None:
    command = [sys.executable, "-m", "treadle", "llm", "run", str(model), "Hi"]
    with subprocess.Popen(
        [*command, "--max-tokens", "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(30) == 1


# -- terminals -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has no token to end with, and takes seconds to fill its context."""
    folder = saved(tmp_path_factory.mktemp("models") / "endless", max_position_embeddings=16384)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def test_ctrl_c_ends_an_answer(endless: Path) -> None:
    for command in ("run", "chat"):
        shown, status = in_terminal(
            *(command, endless, "Hi", "--context", "16384", "--max-tokens", "16000"),
            keys=[("100%", ""), ("\x1b[1A\x1b[2K", ""), ("", "\x03")],
        )
        assert status == 130, shown
        assert re.search(r"\d+ \+ \d+ tokens", shown.splitlines()[-1])
        assert "Traceback" not in shown


def test_an_answer_that_is_ended_is_remembered(
    model: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pieces(stream: TextStream) -> str:
        if len(stream.tokens) == 3:
            raise KeyboardInterrupt
        return following(stream)

    following = TextStream.__next__
    monkeypatch.setattr(TextStream, "__next__", pieces)
    with pytest.raises(SystemExit) as end:
        main(["llm", "chat", str(model), "Hi"])
    assert end.value.code == 130 and " + 3 tokens" in capsys.readouterr().err
    asked: list[list[dict[str, str]]] = []
    conversation = LanguageModel.conversation
    monkeypatch.setattr(
        LanguageModel,
        "conversation",
        lambda own, messages, tools=None: (
            asked.append(list(messages)) or conversation(own, messages, tools)
        ),
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\nMore\n"))
    assert main(["llm", "chat", str(model)]) == 0
    told = capsys.readouterr()
    assert told.err.count(" + 3 tokens") == 2
    assert [m["role"] for m in asked[1]] == ["user", "assistant", "user"]
    assert printable_text(asked[1][1]["content"]) == told.out.split("\n")[0]


def test_a_conversation_goes_on(model: Path) -> None:
    """Also after a message for which there is no room."""
    keys = [("> ", "Hi\n"), ("tokens", ""), ("> ", "x" * 600 + "\n"), ("\n/clear begins anew", "")]
    keys += [("> ", "/clear\n"), ("> ", "Hi\n"), ("tokens", ""), ("> ", "/what\n")]
    keys += [("Ctrl-D", ""), ("> ", "/exit\n")]
    shown, status = in_terminal("chat", model, "--max-tokens", "9", keys=keys)
    assert status == 0, shown
    assert "longer than the model's context" in shown and "  at:" not in shown
    assert len(re.findall(r"\d+ \+ 9 tokens", shown)) == 2
    assert max(map(len, re.findall(r"Type a message[^\r\n]*", shown))) <= 80


@pytest.mark.long
def test_colors_are_left_out_where_nobody_wants_them(model: Path) -> None:
    color = re.compile(r"\x1b\[(3[0-9]|38|9[0-7])[;m]")
    for environment, wanted in (({}, True), ({"NO_COLOR": "1"}, False)):
        shown, status = in_terminal("run", model, "Hi", "--max-tokens", "2", **environment)
        assert status == 0 and "loading small" in shown and "100%" in shown
        assert (color.search(shown) is not None) == wanted


@pytest.mark.long
def test_names_of_files_are_no_markup(model: Path, tmp_path: Path) -> None:
    (tmp_path / "[").mkdir()
    target = tmp_path / "[" / "red] a\x1b[31m.gguf"
    shown, status = in_terminal("convert", model, target)
    assert status == 0 and target.exists(), shown
    assert "\x1b[31m.gguf" not in shown
    shown, status = in_terminal("run", target, "Hi", "--max-tokens", "2")
    assert status == 0 and "loading red] a" in shown, shown
    target.unlink()
    shown, status = in_terminal("run", target, "Hi")
    assert status == 1 and "\x1b[31m.gguf" not in shown


# -- the program of a step -----------------------------------------------------------------------


def test_a_step_is_explained(model: Path, tmp_path: Path, capsys: Captured) -> None:
    """What attention reads grows with what is there before; measured times are there if asked."""
    explain = ["llm", "explain", str(model)]
    found = []
    for behind in (0, 400):
        assert main([*explain, "--behind", str(behind), "--json"]) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        found.append(sum(g["nbytes"] for g in groups if "cached_attention" in g["ops"]))
    assert found[1] > found[0] > 0
    assert main([*explain, "--tokens", "4", "--measure", "-n", "2"]) == 0
    text = capsys.readouterr().out
    assert "median of 2 runs" in text and "measured" in text and "arena" in text
    assert main([*explain, "--html", str(tmp_path / "step.html")]) == 0
    assert "cached_attention" in (tmp_path / "step.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main([*explain, "--behind", "512"]) == 1
    told = capsys.readouterr().err
    assert "the model was made for fewer tokens" in told and "Traceback" not in told


def test_what_is_explained_is_what_answers_run(model: Path) -> None:
    loaded = llm.load(model, cache_dtype="int8")
    loaded.generate("Hi", max_tokens=2, ignore_eos=True)
    run = loaded.model._programs[1, 1].explain(form="json")
    assert loaded.explain().startswith("program _step: ")
    found = loaded.model._programs[1, 1].explain(form="json")
    names = [[k for g in each["groups"] for k in g["kernels"]] for each in (run, found)]
    assert names[0] == names[1] and len(loaded.model._programs[1, 1].variants) == 2
