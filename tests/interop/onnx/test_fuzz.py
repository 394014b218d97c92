"""Random models: repeatable, judged rightly, and known differences that are still there."""

import tomllib
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.onnx

numpy_helper = pytest.importorskip("onnx.numpy_helper", reason="needs the onnx extra")
helper = pytest.importorskip("onnx.helper", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")

from tests.interop.onnx.fuzz import __main__ as command  # noqa: E402
from tests.interop.onnx.fuzz import judging, work  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.interop.onnx import registry  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu() -> None:
    mge.set_default_device("cpux")


def test_a_number_names_a_model() -> None:
    first, second = (work.grow(11, None).model() for _ in range(2))
    assert first == second and 2 <= len(first.graph.node) <= 10
    assert first != work.grow(12, None).model()


def test_a_wrong_operator_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(node: Any, x: Any) -> Any:
        return x * 1.01

    monkeypatch.setitem(registry.CONVERTERS, ("", "Tanh"), [registry.Converter(wrong)])
    keys = {f.key for n in range(3) for f in work.judge(work.grow(n, ["Tanh", "Transpose"]))}
    assert {"Tanh eager differs", "Tanh compiled differs"} <= keys


def test_what_differs_only_together_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that no node shows alone is the whole model's."""
    real = judging.by_treadle

    def broken(model: Any, given: Any, how: str) -> Any:
        made = real(model, given, how)
        fused = how == "compiled" and len(model.graph.node) > 1
        return [m + np.ones((), m.dtype) for m in made] if fused else made

    monkeypatch.setattr(judging, "by_treadle", broken)
    keys = {f.key for f in work.judge(work.grow(3, ["Tanh", "Transpose", "Sigmoid"]))}
    assert keys == {"model compiled differs"}


def test_known_differences_are_still_there() -> None:
    known = tomllib.loads(command.KNOWN.read_text(encoding="utf-8"))
    for entry in known.values():
        assert entry["reason"]
        for key, number in entry["differences"].items():
            found = {f.key for f in work.judge(work.grow(number, entry["operators"]))}
            assert key in found, f"take {key} out of {command.KNOWN.name}"


@pytest.mark.timeout(300)
def test_workers_that_crash_or_hang_cost_one_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {0: '{"model": 0, "at": "run"}', 1: '{"model": 1, "at": "run"}\n', 2: ""}
    script = (
        "import os, sys, time\n"
        f"lines = {lines!r}\n"
        "number = int(sys.argv[1])\n"
        "print(lines.get(number, ''), flush=True)\n"
        "os.abort() if number == 0 else time.sleep(600) if number == 1 else None\n"
        'print(\'{"model": %d, "at": "done", "operators": ["Relu"]}\' % number)\n'
    )
    real = command.subprocess.Popen

    def fake(arguments: list[str], **more: Any) -> Any:
        number = arguments[arguments.index("--worker") + 1]
        return real([arguments[0], "-c", script, number], **more)

    monkeypatch.setattr(command.subprocess, "Popen", fake)
    monkeypatch.setattr(command, "PATIENCE", 3.0)
    chosen = command.parse(["--seconds", "12", "--nnsmith", "0"])
    assert command.Run(chosen).go() == 1
    told = capsys.readouterr().out
    assert "model crashes: model 0" in told
    assert "model hangs: model 1 at run" in told
    assert "1 operators" in told


def test_a_jump_behind_a_sum_that_cancels_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's Fourier transform has 2e-6 where the sum is 0, and Ceil makes 1 of it."""
    signal = [2.2145538, 0.46587864, -1.5355146, -2.8096576, 1.8423566, -0.3967505, 1.5, -0.6426189]
    x = np.array([*signal, -1.4370614], np.float32).reshape(1, 9, 1)
    nodes = [
        helper.make_node("DFT", ["x"], ["y"], "dft", axis=1, onesided=1),
        helper.make_node("Ceil", ["y"], ["z"], "ceil"),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", x.shape), ("z", (1, 5, 2)))]
    graph = helper.make_graph(nodes, "jump", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    values = {"x": x}
    for node in nodes:
        values[node.output[0]] = judging.computed(node, {n: values[n] for n in node.input}, 18)[0]
    assert judging.judged(model, {"x": x}, values) == []
    monkeypatch.setattr(judging, "_follows", lambda *_: False)
    assert judging.judged(model, {"x": x}, values) == []
    monkeypatch.setattr(judging, "SUMS", frozenset())
    found = {f.key for f in judging.judged(model, {"x": x}, values)}
    assert found == {"model eager differs", "model compiled differs"}


def test_a_step_behind_a_number_that_one_side_makes_0_is_nobodys_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2e-9 and 0 are equal by any tolerance, and `Sign` tells them apart; a fault stays one."""
    x = np.array([-20.0, 1.0, -1.0], np.float32)
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["y"], "sigmoid"),
        helper.make_node("Sign", ["y"], ["z"], "sign"),
    ]
    ends = [helper.make_tensor_value_info(n, 1, (3,)) for n in "xz"]
    graph = helper.make_graph(nodes, "step", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    there = np.array([0.0, 0.7310586, 0.26894143], np.float32)
    values = {"x": x, "y": there, "z": np.sign(there)}
    assert judging.judged(model, {"x": x}, values) == []
    real = judging.by_treadle

    def broken(model: Any, given: Any, how: str) -> Any:
        """Only the whole, whose `Sign` is of the other number."""
        return (
            [-m for m in real(model, given, how)]
            if len(model.graph.node) > 1
            else real(model, given, how)
        )

    monkeypatch.setattr(judging, "by_treadle", broken)
    found = {f.key for f in judging.judged(model, {"x": x}, values)}
    assert found == {"model eager differs", "model compiled differs"}


def test_what_follows_a_slice_of_the_runtimes_own_is_nobodys_fault() -> None:
    """ONNX Runtime goes backwards to the first element where a slice ends at the largest number."""
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
    last = 2**31 - 1
    given = [
        numpy_helper.from_array(np.array([v], np.int64), n)
        for n, v in {"start": -last - 1, "end": last, "axis": 1, "step": -2}.items()
    ]
    given.append(numpy_helper.from_array(np.full((2, 3, 1), -1, np.int64), "at"))
    nodes = [
        helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"], "slice"),
        helper.make_node("GatherND", ["y", "at"], ["z"], "gather", batch_dims=1),
    ]
    ends = [helper.make_tensor_value_info(n, 1, (2, 3)) for n in "xz"]
    graph = helper.make_graph(nodes, "slice", ends[:1], ends[1:], given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=10)
    values = {"x": x, "y": x[:, :1], "z": np.repeat(x[:, :1], 3, 1)}
    values |= {g.name: numpy_helper.to_array(g) for g in given}
    assert judging.judged(model, {"x": x}, values) == []
