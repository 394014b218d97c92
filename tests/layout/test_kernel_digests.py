"""The tool that tells which kernels a change of the compiler changes."""

from pathlib import Path

import pytest

from tools import kernel_digests
from tools.kernel_digests import Item
from treadle.backends.codegen.target import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_ops_give_the_same_digests_every_time(target: str, tmp_path: Path) -> None:
    (first,) = kernel_digests._worker("op", target, ["add"], tmp_path)
    (again,) = kernel_digests._worker("op", target, ["add"], None)
    assert first == again and first.place == f"{target} op add"
    texts = list(tmp_path.rglob("*.txt"))
    assert len(texts) == int(first.kernels.partition(":")[0]) > 5
    assert all(text.read_text().strip() for text in texts)


def test_what_differs_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    known = {"a": Item("a", "1:x", "p"), "b": Item("b", "1:x", "p"), "c": Item("c", "1:x", "p")}
    found = {"a": Item("a", "1:x", "p"), "b": Item("b", "2:y", "p"), "d": Item("d", "1:x", "p")}
    assert kernel_digests._compare(found, known, complete=True) == 1
    assert capsys.readouterr().out.splitlines() == [
        "b: kernels 2:y in place of 1:x",
        "c: is gone",
        "d: is new",
        "3 ops and programs, 3 differ from kernel_digests.txt",
    ]
    assert kernel_digests._compare({"a": found["a"]}, known, complete=False) == 0


def test_another_plan_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    known, found = {"a": Item("a", "1:x", "p")}, {"a": Item("a", "1:x", "q")}
    assert kernel_digests._compare(found, known, complete=True) == 1
    assert "a: the same kernels, another plan" in capsys.readouterr().out
