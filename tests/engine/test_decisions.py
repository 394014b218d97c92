"""Who runs an op: the order of asking, what users force, explanations, traces, reports."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, logged
from tests.backends.test_tier0 import on_device_only
from tests.backends.toy_backend import Toy, elementwise, float32_only, kernel

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.backends.api import Availability, Backend, Kernel, Support, no
from treadle.base.errors import DeviceError, TraceError, UnsupportedOp
from treadle.base.log import get_logger
from treadle.engine.devices.names import resolve
from treadle.engine.eager import dispatch
from treadle.engine.eager.forced import mistakes
from treadle.ops.elementwise import Add
from treadle.runtime.array import DeviceArray


class Generator(Backend):
    """Generates code for the toy's arrays, by way of the host; takes exp and add."""

    protocol = (1, 0)
    name, serves, priority = "generator", ("toy",), 1

    def __init__(self) -> None:
        self.ran = 0

    def probe(self) -> Availability:
        return Availability(True)

    def prepare(self, op: Any, types: Sequence[Any], /) -> Callable[..., Any] | Support:
        if op.name not in ("exp", "add"):
            return no("op", "only exp and add")
        if types[0].dtype.name != "float32":
            return no("dtype", "only float32")

        def launch(*payloads: Any) -> Any:
            self.ran += 1
            made = op.reference(*[p.host() for p in payloads])
            return DeviceArray(payloads[0].device, made.dtype, made.shape, host=made)

        return launch


@contextmanager
def traced() -> Iterator[list[str]]:
    """What the dispatch trace logs inside the block."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = get_logger("dispatch"), Lines()
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


# -- the order -----------------------------------------------------------------------------------


def test_kernels_come_before_generated_code_and_that_before_the_host(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=[kernel("add", np.add)])
    generator = plugins.offer("generator", Generator())
    x = mge.tensor([0.0, 1.0], device="toy0")
    assert (x + x).tolist() == [0.0, 2.0]
    assert toy.opened[0].launches == 1 and generator.ran == 0
    assert F.exp(x)[0].item() == 1.0 and generator.ran == 1
    with mge.fallback("silent"):
        ints = mge.tensor([1, 2], device="toy0")
        assert (ints + ints).tolist() == [2, 4] and F.log(x + 1).shape == (2,)
    reasons = {row.op: row.reason for row in mge.fallback_report()}
    assert reasons["add"] == "dtype: only float32, not int32", "kernels are asked first"
    assert reasons["log"] == "op: only exp and add", "whoever was asked last of ops"
    decided = dispatch.decision(Add(), (ints.type, ints.type), resolve("toy0"))
    assert [who for who, _ in decided.refusals] == ["toy", "generator"]
    assert decided.winner in ("host (cpu)", "host (reference)")


def test_generated_code_that_lies_is_caught(plugins: Plugins) -> None:
    plugins.toy()
    generator = plugins.offer("generator", Generator())
    generator.prepare = lambda op, types, /: lambda *xs: np.zeros(3)
    with pytest.raises(mge.TreadleError, match="exp: the engine generator returned other types"):
        F.exp(mge.tensor([0.0, 1.0], device="toy0"))


# -- what users force ----------------------------------------------------------------------------


def several() -> Toy:
    named = [("plain", 0), ("fast", 5), ("never", 9)]
    supports = {"never": lambda op, types: no("policy", "never")}
    kernels = [
        Kernel(
            "add",
            kernel("add", lambda x, y, k=name: x + y + len(k)).run,
            supports.get(name, float32_only),
            priority,
            name,
        )
        for name, priority in named
    ]
    return Toy("toy", kernels=kernels)


def test_one_of_several_kernels_is_forced(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.offer("toy", several())
    x = mge.tensor([0.0], device="toy0")
    assert (x + x).item() == 4.0, "`fast`, since `never` says no"
    assert [row["kernel"] for row in mge.device.ops("toy0")] == ["never", "fast", "plain"]
    with mge.force(add="plain"):
        assert (x + x).item() == 5.0
        with mge.force(add="host"), mge.fallback("silent"):
            assert (x + x).item() == 0.0
        assert (x + x).item() == 5.0
    with mge.force(add="never"), pytest.raises(UnsupportedOp, match="asks for 'never'") as caught:
        x + x
    assert "never says no (policy): never" in str(caught.value)
    with mge.force(add="fats"), pytest.raises(UnsupportedOp, match="nothing of this") as caught:
        x + x
    assert "fast, plain" in str(caught.value)
    assert (x + x).item() == 4.0, "outside of all blocks nothing is forced"
    with pytest.raises(UnsupportedOp, match="no op 'adds'") as caught, mge.force(adds="x"):
        pytest.fail("the block was entered")
    assert "did you mean add?" in str(caught.value)


def test_the_environment_forces_choices(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_KERNEL", "add=plain, exp=reference")
    monkeypatch.setenv("TREADLE_FORCE_FALLBACK", "add, log, adds")
    plugins.offer("toy", several())
    x = mge.tensor([1.0], device="toy0")
    with mge.fallback("silent"):
        assert (x + x).item() == 7.0, "TREADLE_KERNEL is asked first"
        F.log(x)
    (row,) = mge.fallback_report()
    assert row.reason == "policy: forced by TREADLE_FORCE_FALLBACK"
    big = mge.tensor(np.ones(100_000), device="cpux")
    for op, by in (("exp", "TREADLE_KERNEL"), ("log", "TREADLE_FORCE_FALLBACK")):
        decided = mge.explain(op, big).decisions[0]
        assert (decided.runner, decided.forced) == ("reference", by)
    assert mistakes() == [
        "TREADLE_FORCE_FALLBACK names 'adds', which is not an op; did you mean add?"
    ]


# -- explanations --------------------------------------------------------------------------------


def test_explain_tells_of_one_op_and_runs_nothing(plugins: Plugins) -> None:
    toy = plugins.toy(kernels=elementwise())
    x = mge.tensor([1.0, 2.0], device="toy0")
    launches = toy.opened[0].launches
    text = str(mge.explain("add", x, x))
    assert text == ("add on toy0:0: x float32[2]@toy0:0, y float32[2]@toy0:0\n  runs:  kernel toy")
    found = mge.explain(Add(), x.astype("int32"), x.astype("int32"))
    assert "asked: toy  no (dtype): only float32, not int32" in repr(found)
    assert "runs:  host (" in repr(found) and found.decisions[0].runner == "host"
    assert toy.opened[0].launches == launches
    with pytest.raises(UnsupportedOp, match="there is no op 'ad'"):
        mge.explain("ad", x, x)
    with pytest.raises(DeviceError, match="different devices: toy0:0 and cpux:0"):
        mge.explain("add", x, mge.tensor([1.0], device="cpux"))


def test_explain_tells_of_every_op_of_a_function(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    net = M.Sequential(M.Linear(2, 3), M.ReLU(), M.Linear(3, 1)).to("toy0")
    x = mge.tensor([[1.0, 2.0]], device="toy0")
    found = mge.explain(net, x)
    told = [(d.subject, d.runner) for d in found.decisions]
    assert told == [
        ("matmul", "host"),
        ("broadcast (operand y of add)", "host"),
        ("add", "kernel"),
        ("relu", "kernel"),
        ("matmul", "host"),
        ("add", "kernel"),  # of single elements, which are spread without remark
    ]
    text = str(found)
    assert text.startswith("Sequential: 6 ops, 3 fall back to the host")
    assert "toy: no (attribute): no transposed operands" in text
    repeated = mge.explain(lambda x: x + x + x, mge.tensor([1.0], device="toy0"))
    assert repeated.counts == (2,)
    with mge.fallback("error"):
        mge.explain(net, x)  # nothing is run, nothing falls back
    with pytest.raises(TraceError):
        mge.explain(lambda x: x if x.sum() > 0 else -x, x)


def test_everyone_tells_for_which_operand_a_broadcast_falls_back(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.toy(kernels=[kernel("add", np.add), kernel("mul", np.multiply)])
    told = "broadcast (operand y of add)"
    a = on_device_only(mge.tensor(np.ones((4, 2)), device="toy0"))
    b = on_device_only(mge.tensor([1.0, 2.0], device="toy0"))
    found = mge.explain("add", a, b)
    assert [(d.subject, d.runner) for d in found.decisions] == [(told, "host"), ("add", "kernel")]
    assert str(found).startswith("add: 2 ops, 1 fall back to the host") and told in str(found)
    twice = mge.explain(lambda a, b: (a + b + b, b * a), a, b)
    assert [(d.subject, n) for d, n in zip(twice.decisions, twice.counts, strict=True)] == [
        (told, 2),
        ("add", 2),
        ("broadcast (operand x of mul)", 1),
        ("mul", 1),
    ]
    step = mge.jit.compile(lambda a, b: a + b)
    for use in (lambda: a + b, lambda: step(a, b)):
        with mge.fallback("error"), pytest.raises(UnsupportedOp) as caught:
            use()
        assert f"{told}: toy0:0 cannot run it" in str(caught.value)
    monkeypatch.setenv("TREADLE_TRACE_DISPATCH", "1")
    with logged() as warnings, traced() as lines:
        a[:3] + b
    assert any(w.startswith(f"{told} runs on the host instead") for w in warnings)
    assert any(" for operand y of add on toy0:0: host" in line for line in lines)
    (row,) = [row for row in mge.fallback_report() if row.op == "broadcast"]
    assert row.purpose == "operand y of add" and row.calls == 1
    assert told in str(mge.fallback_report()) and told in str(mge.report("toy0"))
    assert "toy: no (op): toy has no kernel for broadcast\n" in str(mge.report("toy0")), "not cut"
    assert f"  {told} " in step.explain(a, b)
    F.broadcast_to(b, (4, 2)).numpy()
    purposes = [row.purpose for row in mge.fallback_report() if row.op == "broadcast"]
    assert sorted(purposes) == ["", "operand y of add"]


def test_new_decisions_are_logged_once(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.toy(kernels=elementwise())
    x = mge.tensor([1.0, 2.0], device="toy0")
    with traced() as lines, mge.fallback("silent"):
        x + x
        assert lines == []
        monkeypatch.setenv("TREADLE_TRACE_DISPATCH", "1")
        for _ in range(3):
            x * x
            F.exp(x)
        x[:1] * x[:1]
    mul = [line for line in lines if line.startswith("mul")]
    types = "x float32[2]@toy0:0, y float32[2]@toy0:0"
    assert mul[0] == f"mul({types}) on toy0:0: kernel toy" and len(mul) == 2, "one for each shape"
    (exp,) = [line for line in lines if line.startswith("exp")]
    assert exp.endswith("(toy: no (op): toy has no kernel for exp)")


# -- reports ---------------------------------------------------------------------------------------


def test_the_report_of_a_device_is_all_in_one_place(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    x = on_device_only(mge.tensor(np.ones((4, 4)), device="toy0"))
    with mge.fallback("silent"):
        F.exp(x + x).numpy()
    report = mge.report("toy0")
    assert (report.device, report.state) == ("toy0:0", "open")
    assert [row["name"] for row in report.backends] == ["toy"]
    assert report.memory["total"] == 1 << 26 and report.memory["allocated"] >= 64
    assert report.copies.downloads >= 1 and report.copies.bytes_up >= 64
    decided = {d.op.name: d.runner for d in report.decisions}
    assert decided["add"] == "kernel" and decided["exp"] == "host"
    assert [row.op for row in report.fallbacks] == ["exp"]
    assert {row.op for row in report.ran} >= {"add"}
    data = json.loads(json.dumps(report.data()))
    (exp,) = [d for d in data["decisions"] if d["op"] == "exp"]
    assert exp["refused"] == {"toy": "no (op): toy has no kernel for exp"}
    text = str(report)
    assert "kinds of ops" in text and "decisions:" in text and repr(report) == text
    host = mge.report("cpux")
    assert {"reference", "cpu"} <= {row["name"] for row in host.backends}
    assert "kernels compiled" in host.counters


def test_kernels_of_unknown_ops_are_not_listed(plugins: Plugins) -> None:
    plugins.toy(kernels=[kernel("others.adds", np.add), kernel("add", np.add)])
    assert mge.device.ops("toy0") == [{"op": "add", "kernel": "toy", "priority": "0"}]
    assert plugins.row("toy")["ops"] == "1"


def test_printing_a_tensor_copies_it_once(plugins: Plugins) -> None:
    plugins.toy(kernels=elementwise())
    x = on_device_only(mge.tensor([1.0, 2.0], device="toy0"))
    before = mge.report("toy0").copies
    assert str(x) == "Tensor([1. 2.], device=toy0:0)" and repr(x) == str(x)
    after = mge.report("toy0").copies
    assert after.downloads - before.downloads == 1 and after.bytes_down - before.bytes_down == 8


@pytest.mark.parametrize(
    "use",
    [
        lambda a, b: a + b,
        lambda a, b: F.matmul(a, b),
        lambda a, b: F.concat([a, b]),
        lambda a, b: F.where(a > 0, a, b),
        lambda a, b: a.__setitem__(0, b[0]),
        lambda a, b: F.loss.square_loss(a, b),
    ],
    ids=["add", "matmul", "concat", "where", "setitem", "loss"],
)
def test_mixing_devices_names_both_and_the_fix(
    use: Callable[[Any, Any], Any], plugins: Plugins
) -> None:
    plugins.toy(kernels=elementwise())
    a = mge.tensor(np.ones((2, 2)), device="toy0")
    b = mge.tensor(np.ones((2, 2)), device="cpux")
    refused = pytest.raises(DeviceError, match=r"different devices|ambiguous device")
    with mge.fallback("silent"), refused as caught:
        use(a, b)
    text = str(caught.value)
    assert "toy0:0" in text and "cpux:0" in text
    assert ".to('toy0:0')" in text or "pass device='toy0:0'" in text
    assert "test_decisions.py" in text
    with mge.fallback("silent"):
        use(a, b.to("toy0"))
