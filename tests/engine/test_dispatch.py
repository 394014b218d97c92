"""Eager dispatch: what is remembered under which key, who is asked, and how failures read."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins

import treadle as mge
import treadle.functional as F
from treadle.backends import registry
from treadle.backends.api import Availability, Backend, Support, no
from treadle.base.errors import (
    DeviceError,
    DTypeError,
    IndexRangeError,
    OutOfMemory,
    ShapeError,
    UnsupportedOp,
)
from treadle.engine.devices.names import resolve
from treadle.engine.eager import dispatch
from treadle.engine.eager.choice import Decision
from treadle.engine.eager.failures import explain
from treadle.ops.elementwise import Add
from treadle.ops.matmul import Matmul
from treadle.ops.movement import Reshape
from treadle.ops.transfer import Transfer
from treadle.ops.unary import Exp


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Any]]:
    """An empty cache for the time of a test, and operator tables without what others left there."""
    registry.rescan()
    empty: dict[Any, Any] = {}
    monkeypatch.setattr(dispatch, "_ENTRIES", empty)
    yield empty


def kinds_of(*tensors: mge.Tensor) -> tuple[Any, ...]:
    return tuple(t._kind for t in tensors)


# -- keys --------------------------------------------------------------------------------------


def test_shape_free_ops_have_one_entry_for_all_shapes(entries: dict[Any, Any]) -> None:
    for shape in ((2,), (3, 1), (), (0, 4)):
        F.exp(mge.tensor(np.zeros(shape)))
    key = (Exp(), kinds_of(mge.tensor([0.0])))
    assert list(entries) == [key] and dispatch.lookup(key) is entries[key]
    F.exp(mge.tensor([0.0], dtype="float64"))
    F.exp(mge.tensor([0.0], device="cpu1"))
    assert len(entries) == 3


def test_other_ops_have_one_for_each_shape(entries: dict[Any, Any]) -> None:
    for shape in ((2, 3), (6,), (2, 3)):
        mge.tensor(np.zeros(shape)).reshape(3, 2)
    assert len(entries) == 2
    assert all(key[0] == Reshape((3, 2)) for key in entries)


def test_attributes_are_part_of_the_key(entries: dict[Any, Any]) -> None:
    x = mge.tensor(np.ones((2, 2)))
    for transposed in (False, True):
        Matmul(transpose_x=transposed)(x, x)
    assert len(entries) == 2


def test_creation_is_kept_by_op_and_device(entries: dict[Any, Any]) -> None:
    a, b, c = F.zeros(3), F.zeros(3), F.zeros(4)
    assert len(entries) == 2 and a._data is not b._data and c.shape == (4,)


def test_transfers_are_kept_for_all_shapes(entries: dict[Any, Any]) -> None:
    for shape in ((2,), (3, 4)):
        assert mge.tensor(np.zeros(shape)).to("cpu2").device == "cpu2"
    assert len(entries) == 1
    x = mge.tensor([1.0])
    assert Transfer("")(x).device == x.device, "a transfer to nowhere stays"


def test_the_cache_is_bounded(entries: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_MOST_ENTRIES", 8)
    for n in range(1, 30):
        assert mge.tensor(np.zeros(n)).reshape(n, 1).shape == (n, 1)
        assert len(entries) <= 8


def test_eager_types_are_interned() -> None:
    a, b = mge.tensor([1.0], device="cpu0"), mge.tensor([[2.0]], device="cpu0")
    assert a._kind is b._kind
    assert a._kind is not mge.tensor([1], device="cpu0")._kind
    assert a._kind is not mge.tensor([1.0], device="cpu1")._kind


def test_two_threads_may_meet_at_a_new_op() -> None:
    for n in range(40):
        barrier = threading.Barrier(2, timeout=300)
        results: list[Any] = []

        def work(n: int = n, barrier: Any = barrier, results: list[Any] = results) -> None:
            x = mge.tensor(np.arange(n + 2.0))
            barrier.wait()
            results.append((x.reshape(1, n + 2) + 1)._kind)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 2 and results[0] is results[1]


# -- engines -----------------------------------------------------------------------------------


class Picky(Backend):
    """An engine on the host that adds float32 and takes nothing else."""

    protocol = (1, 0)
    serves = ("cpu",)

    def __init__(self, name: str, priority: int) -> None:
        self.name = name
        self.priority = priority
        self.asked: list[str] = []
        self.ran = 0

    def probe(self) -> Availability:
        return Availability(True, count=0)

    def prepare(self, op: Any, types: Sequence[Any], /) -> Callable[..., Any] | Support:
        self.asked.append(op.name)
        if op.name == "exp":
            raise RuntimeError("a bug")
        if op.name != "add":
            return no("op", "adds only")
        if types[0].dtype.name != "float32":
            return no("dtype", "float32 only")
        return self.launch

    def launch(self, x: Any, y: Any) -> Any:
        self.ran += 1
        return np.add(x, y)


def test_the_best_engine_that_says_yes_runs_the_op(plugins: Plugins) -> None:
    mge.tensor([1.0]) + mge.tensor([2.0])  # known to the operators' own tables
    picky = plugins.offer("picky", Picky("picky", 5))
    x = mge.tensor([1.0, 2.0])
    assert (x + x).tolist() == [2.0, 4.0] and picky.ran == 1
    assert (x + x).tolist() == [2.0, 4.0] and picky.ran == 2
    assert picky.asked == ["add"], "asked once, then remembered"
    assert (x * x).tolist() == [1.0, 4.0] and picky.ran == 2
    ints = mge.tensor([1, 2])
    assert (ints + ints).tolist() == [2, 4] and picky.ran == 2
    assert F.exp(x - x).tolist() == [1.0, 1.0], "an engine's bug leaves the next one"
    decided = dispatch.decision(Add(), (ints.type, ints.type), resolve("cpux"))
    assert decided.runner == "cpu"
    assert decided.refusals == (("picky", no("dtype", "float32 only")),)
    failed = dispatch.decision(Exp(), (x.type,), resolve("cpux"))
    assert failed.refusals[0][1].message == "prepare() failed: RuntimeError: a bug"


def test_engines_also_serve_ops_that_fall_back(plugins: Plugins) -> None:
    picky = plugins.offer("picky", Picky("picky", 5))
    plugins.toy()
    x = mge.tensor([1.0], device="toy0")
    with mge.fallback("silent"):
        assert (x + x).item() == 2.0 and picky.ran == 1


def test_an_engine_of_lower_priority_is_not_asked(plugins: Plugins) -> None:
    last = plugins.offer("last", Picky("last", -1))
    x = mge.tensor([1.0])
    assert (x + x).item() == 2.0 and last.asked == []
    names = [e.name for e in registry.engines("cpu")]
    assert names[:2] == ["cpu", "reference"] and "last" in names


def test_all_reasons_are_told_where_nobody_runs_an_op(
    entries: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = (Picky("first", 5), Picky("second", 4))
    monkeypatch.setattr(registry, "engines", lambda kind: engines)
    with pytest.raises(UnsupportedOp, match="add: no engine on the host runs it") as caught:
        Add()(mge.tensor([1]), mge.tensor([1]))
    text = str(caught.value)
    assert "x int32[1]@" in text and "test_dispatch.py" in text
    assert "first says no (dtype): float32 only; second says no (dtype)" in text
    assert entries == {}, "a refusal is not remembered"


def test_engines_are_sought_once(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.engines("cpu") is registry.engines("cpu")

    def unexpected() -> Any:
        pytest.fail("backends were walked again")

    monkeypatch.setattr(registry, "loaded", unexpected)
    for n in range(2, 5):
        mge.tensor(np.zeros(n)).reshape(1, n)


# -- devices -----------------------------------------------------------------------------------


def test_mixing_devices_names_both_and_the_fix() -> None:
    a, b = mge.tensor([1.0], device="cpu0"), mge.tensor([1], device="cpu1").astype("float32")
    with pytest.raises(DeviceError, match="add: operands are on different") as caught:
        a + b
    text = str(caught.value)
    assert "float32@cpu0:0, float32@cpu1:0" in text and "x.to('cpu0:0')" in text
    assert "test_dispatch.py" in text


def test_streams_and_logical_names_of_one_device_mix() -> None:
    a, b = mge.tensor([1.0], device="cpux"), mge.tensor([1.0], device="cpu0:1")
    assert (a + b).device == "cpux" and (b + a).device == "cpu0:1"


# -- failures ----------------------------------------------------------------------------------

HERE = "test_dispatch.py"


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Exception:
    """What the user sees where an engine's launch raises `error`."""

    def launch(*arrays: Any) -> Any:
        raise error

    monkeypatch.setattr(dispatch, "_ENTRIES", {})
    decided = Decision(Exp(), (), "cpux:0", "faulty")
    monkeypatch.setattr(dispatch, "choose_engine", lambda *a: (launch, decided))
    x = mge.tensor([[1.0, 2.0]])
    with pytest.raises(Exception) as caught:
        Exp()(x)
    return caught.value


@pytest.mark.parametrize(
    ("raised", "expected", "base"),
    [
        (ValueError("cannot be shaped"), ShapeError, ValueError),
        (TypeError("cannot be typed"), DTypeError, TypeError),
        (OverflowError("is too large"), DTypeError, TypeError),
        (IndexError("is out of range"), IndexRangeError, IndexError),
        (MemoryError("ignored"), OutOfMemory, MemoryError),
    ],
)
def test_a_failure_names_op_types_fix_and_line(
    raised: Exception, expected: type, base: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = failing(monkeypatch, raised)
    assert type(seen) is expected and isinstance(seen, base)
    assert seen.__cause__ is raised
    first, saw, hint, at = str(seen).splitlines()
    told = "not enough memory for the result float32[1,2]"
    assert first.startswith("exp: " + (told if base is MemoryError else str(raised)))
    assert saw.startswith("  saw:  x float32[1,2]@")
    assert hint.startswith("  hint: ") and HERE in at


def test_defects_are_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    defect = ZeroDivisionError("a bug")
    assert failing(monkeypatch, defect) is defect


def test_designed_errors_pass_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    designed = DeviceError("exp", "was designed")
    assert failing(monkeypatch, designed) is designed


def test_the_type_rule_explains_better_than_numpy() -> None:
    x = mge.tensor(np.ones((2, 3)))
    Matmul()(x, mge.tensor(np.ones((3, 2))))  # the launch is known
    with pytest.raises(ShapeError) as caught:
        Matmul()(x, x)
    assert "matmul: " in str(caught.value) and "gufunc" not in str(caught.value)
    assert HERE in str(caught.value) and caught.value.__cause__ is not None
    with pytest.raises(ShapeError, match=r"add: .*axis -1: 3 against 2"):
        x + mge.tensor([1.0, 2.0])


def test_messages_of_numpy_are_replaced() -> None:
    error = explain(Reshape((3,)), (mge.tensor([1.0, 2.0]).type,), ValueError())
    assert isinstance(error, ShapeError) and "cannot reshape [2] to [3]" in str(error)
    with pytest.raises(OutOfMemory, match="full: cannot allocate"):
        F.full((2**20, 2**20), 1.0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: F.zeros((2**20, 2**20)),
        lambda: F.ones((2**40,), dtype="int8"),
        lambda: F.broadcast_to(mge.tensor(1.0), (2**20, 2**20)).numpy(),
        lambda: F.arange(0, 2**40),
        lambda: F.eye(2**20),
    ],
    ids=["zeros", "ones", "broadcast", "arange", "eye"],
)
def test_huge_requests_are_refused_and_the_process_goes_on(ask: Callable[[], Any]) -> None:
    with pytest.raises(MemoryError):
        ask()
    assert (F.zeros((2, 2)) + 1).sum().item() == 4.0
