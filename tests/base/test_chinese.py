"""Errors in Chinese: the table's texts are those of the sources, and what people read."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import treadle as mge
import treadle.functional as F
from treadle.base import chinese
from treadle.cli import main

ROOT = Path(__file__).resolve().parents[2]
LOCALES = ("LC_ALL", "LC_MESSAGES", "LANG", "TREADLE_LANGUAGE")


@pytest.fixture
def in_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LOCALES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")


def texts() -> set[str]:
    """Texts of the sources, `{}` in place of what they are filled with."""
    found = set()
    own = Path(chinese.__file__)
    for path in (ROOT / "src" / "treadle").rglob("*.py"):
        if path == own:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
                found.add("".join(map(str, parts)))
    return found


def test_the_table_has_the_texts_of_the_sources() -> None:
    known = texts()
    # What is put behind a text, as lists are, is not part of it.
    missing = [t for t in chinese.TABLE if not {t, t.removesuffix("{}")} & known]
    assert not missing
    for text, translation in chinese.TABLE.items():
        holes = text.count("{}")
        translation.format(*"x" * holes)
        assert len(re.findall(r"\{\d*\}", translation)) == holes, text


def test_classes_are_those_of_the_page() -> None:
    page = (ROOT / "docs/zh/errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (T\d\d) \| \[\w+\]\(#\w+\) \| (.+)。 \|$", page, re.MULTILINE)
    page_of = {code: said for code, said in rows if code != "T00"}
    assert page_of == {code: said for code, said in chinese.CLASSES.items() if code != "T00"}


@pytest.mark.parametrize(
    ("code", "told", "advice"),
    [
        (
            "mge.tensor([1., 2., 3.]) + mge.tensor([1., 2.])",
            "轴 -1 无法广播：3 与 2 不同",
            "reshape",
        ),
        ("F.matmul(F.ones((2, 3)), F.ones((2, 3)))", "内侧的两个长度 3 和 2 不同", "转置其中一个"),
        (
            "mge.module.Conv2d(3, 4, 3)(F.ones((2, 8, 8, 3)))",
            "x 有 8 个通道，应为 3 个",
            "F.transpose(x, (0, 3, 1, 2)) 把它变成第二个轴；布局为",
        ),
        ("mge.tensor([1.], device='cuda')", "'cuda' 不是设备名称；是否想写 'gpux'？", ""),
        ("mge.tensor([1.], device='gpu9')", "没有设备 gpu9：这一种类共有 0 个", "安装后端"),
        (
            "mge.tensor([1.], device='cpu0') + mge.tensor([1.], device='cpu1')",
            "不同的设备上",
            "移动",
        ),
        ("F.zeros((3,))[7]", "索引 7 超出范围：轴 0 的长度为 3", "使用 -3 到 2"),
        ("F.zeros((2, 3)).reshape(4, 2)", "无法把形状 [2,3] 变为 [4,2]", "元素个数必须相同"),
        (
            "F.loss.cross_entropy(F.ones((2, 3)), mge.tensor([1, 7]))",
            "标签 7 不属于 3 个",
            "0 到 2",
        ),
        ("F.relu(mge.tensor([True]))", "不接受 bool", "转换为以下类型之一：uint8"),
        ("mge.tensor([300], dtype='uint8')", "数值 300 不适合 uint8", ""),
        ("F.matinv(F.zeros((2, 2)))", "矩阵是奇异的", ""),
        (
            "mge.jit.compile(lambda x: x if x.sum() > 0 else -x)(F.ones(3))",
            "只有程序运行时",
            "F.where",
        ),
        (
            "mge.jit.compile(lambda x: mge.jit.scan(lambda s, r: (s, r[r > 0]), (x[0],), (x,)))"
            "(F.ones((2, 3)))",
            "循环体的结果有一个长度由数据决定",
            "例如总和",
        ),
        (
            "mge.autodiff.GradManager().attach(F.ones(1)).backward(F.ones(1))",
            "没有计算历史",
            "调用一次 backward",
        ),
        ("F.zeros((2**20, 2**20))", "无法为 float32[1048576,1048576] 分配", "较小的形状"),
        # What the table lacks is told by its class.
        ("F.split(F.ones((3,)), [5, 2])", "形状、轴或大小不适合该算子", ""),
    ],
)
def test_what_people_meet_first(in_chinese: None, code: str, told: str, advice: str) -> None:
    with pytest.raises(mge.TreadleError) as caught:
        eval(code, {"mge": mge, "F": F})
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    (problem,) = [line for line in lines if line.startswith("  中文: ")]
    assert told in problem
    hints = [line for line in lines if line.startswith("  建议: ")]
    assert len(hints) <= 1 and advice in "".join(hints) and bool(advice) == bool(hints)
    assert "中文" not in str(caught.value)  # The message itself stays English: programs read it.


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LANG": "zh_TW"}, True),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False),
        ({"LC_MESSAGES": "zh_CN", "LANG": "en_US"}, True),
        ({"TREADLE_LANGUAGE": "zh"}, True),
        ({"TREADLE_LANGUAGE": "en", "LANG": "zh_CN"}, False),
    ],
)
def test_the_language_is_that_of_the_system_or_what_is_said(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    for name in LOCALES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert chinese.is_chinese() is wanted


def test_help_and_commands_are_in_chinese(
    in_chinese: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["help", "T01"]) == 0
    assert "形状、轴或大小不适合该运算" in capsys.readouterr().out
    damaged = tmp_path / "net.tm"
    damaged.write_bytes(b"not a model at all")
    assert main(["run", str(damaged)]) != 0
    assert "  中文: " in capsys.readouterr().err


def test_terminals_that_lack_the_letters_get_errors_nevertheless() -> None:
    code = "import treadle as mge; mge.tensor([1.], device='cuda')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", "PYTHONIOENCODING": "ascii", "TREADLE_LANGUAGE": "zh"},
        capture_output=True,
        text=True,
    )
    assert "is not a device name" in done.stderr and "\\u4e2d\\u6587" in done.stderr
