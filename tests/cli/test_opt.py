"""`treadle opt`: single passes on the text of a graph."""

import io
from pathlib import Path

import pytest

from treadle.cli import main
from treadle.engine.devices.placement import find_compiler
from treadle.engine.optimize import STEPS, optimize
from treadle.engine.options import Options
from treadle.engine.report import CompileReport
from treadle.graph.parser import parse
from treadle.graph.passes import PASSES
from treadle.graph.printer import to_text

GRAPH = """\
graph step(%x: float32[4,3], %w: float32[3,5]) {
  %0 = matmul{transpose_x=False, transpose_y=False}(%x, %w) : float32[4,5]
  %1 = constant{data=float32[](2.0), device=''}() : float32[]
  %2 = mul(%0, %1) : float32[4,5]
  %3 = relu(%2) : float32[4,5]
  %4 = exp(%3) : float32[4,5]
  %5 = sum{axes=(1,), keepdims=False}(%4) : float32[4]
  return %5
}
"""
CONVOLUTION = """\
graph conv(%x: float32[1,16,32,32], %w: float32[16,16,3,3]) {
  %0 = conv{strides=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1}(%x, %w) \
: float32[1,16,32,32]
  %1 = relu(%0) : float32[1,16,32,32]
  return %1
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the text of a graph."""
    path = tmp_path / "step.txt"
    path.write_text(GRAPH, encoding="utf-8")
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command prints."""
    assert main(["opt", *arguments]) == 0
    return capsys.readouterr().out


def test_without_passes_the_graph_is_printed_as_it_is(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, str(file)) == GRAPH


def test_a_pass_of_groups_makes_its_kind_and_no_other(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loops = printed(capsys, str(file), "--passes", "loop")
    assert "kind='loop'" in loops and "kind='contraction'" not in loops
    assert [n.op.name for n in parse(loops).nodes] == ["matmul", "fused"]
    both = printed(capsys, str(file), "--passes", "contraction,loop")
    assert "kind='contraction'" in both and "exp" not in [n.op.name for n in parse(both).nodes]


def test_groups_stay_as_they_are_in_later_passes(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = printed(capsys, str(file), "--passes", "fuse")
    assert printed(capsys, str(file), "--passes", "fuse,layout,fuse") == once


def test_passes_of_prepare_take_their_options(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GRAPH.replace("return %5", "%6 = neg(%5) : float32[4]\n  return %5")
    file.write_text(text, encoding="utf-8")
    given = 'dce, simplify{fuel=3, level="fast"}'
    assert printed(capsys, str(file), "--passes", given) == GRAPH


def test_a_pipe_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(GRAPH))
    assert "fused" in printed(capsys, "--passes", "fuse", "-")


def test_what_was_decided_is_told_apart(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", "--passes", "dce,fuse", "--why", str(file)]) == 0
    shown = capsys.readouterr()
    assert parse(shown.out).nodes
    assert "one contraction kernel" in shown.err and "dce" in shown.err


def test_inputs_that_keep_their_contents_are_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONVOLUTION.replace("3,3])", "3,3], %s: float32[1,16,1,1])", 1)
    file.write_text(text.replace("relu(%0)", "mul(%0, %s)"), encoding="utf-8")

    def first(*frozen: str) -> str:
        names = [word for name in frozen for word in ("--frozen", name)]
        made = parse(printed(capsys, str(file), "--passes", "fold_scales", *names))
        return next(n.op.name for n in made.nodes if n.op.name in ("conv", "mul"))

    assert first() == first("w") == "conv"
    assert first("w", "s") == first("%w", "%s") == "mul"
    assert first("*") == "conv"  # Nothing is left to fold it for: all is computed once.


def test_the_list_names_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys, "--list")
    listed = {line.split()[0] for line in shown.splitlines() if line.startswith("  ")}
    assert listed == {*PASSES, *STEPS}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--passes", "fuze"], 2, "did you mean fuse?"),
        (["--passes", "simplify{fule=3}"], 2, "has no option fule"),
        (["--passes", "layout{x=1}"], 2, "takes no options"),
        (["--passes", "simplify{"], 2, "expected"),
        (["--frozen", "q"], 2, "inputs: x, w"),
    ],
)
def test_what_is_wrong_is_said(
    arguments: list[str], status: int, words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_file = ["opt", *arguments, str(file)]
    assert main(with_file) == status
    shown = capsys.readouterr()
    assert words in shown.err and not shown.out


def test_a_graph_that_is_none_has_a_line_and_a_column(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GRAPH.replace("exp(%3)", "exp(%9)"), encoding="utf-8")
    assert main(["opt", str(file)]) == 1
    assert "line 6, column" in capsys.readouterr().err
    assert main(["opt"]) == 2
    assert "no graph was named" in capsys.readouterr().err
    assert main(["opt", str(file.with_name("none.txt"))]) == 1


@pytest.mark.parametrize("text", [GRAPH, CONVOLUTION], ids=["product", "convolution"])
def test_one_after_the_other_they_are_the_stage(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(text, encoding="utf-8")
    options = Options()
    whole = optimize(parse(text), find_compiler(options), options, CompileReport())
    passes = "winograd,layout,fuse"
    assert printed(capsys, str(path), "--passes", passes) == to_text(whole)
