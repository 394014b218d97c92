"""Files of traced modules: what they hold, what is refused, and loaders for old ones."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.traced_module.nets import Attention, Inverted, images, same, settle, traced_net

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.traced_module as tm
from treadle.base.errors import CheckpointError, EditError
from treadle.interop.megengine import builtin, internals
from treadle.ops.elementwise import Neg
from treadle.ops.unary import Sqrt
from treadle.quantization import ema_fakequant_qconfig, quantize, quantize_qat
from treadle.traced_module import CallMethod, Constant, TensorNode, codec, serialization

LOAD = """
import sys
import numpy as np
import treadle as mge
traced = mge.load(sys.argv[1])
assert not any(name.startswith("tests") for name in sys.modules)
data = np.load(sys.argv[2])
np.testing.assert_allclose(traced(mge.tensor(data["x"])).numpy(), data["y"], rtol=1e-4, atol=1e-5)
assert type(traced.block0.conv1).__name__ == "Conv2d"
print(traced.graph)
"""


def there_and_back(obj: Any) -> Any:
    file = io.BytesIO()
    mge.save(obj, file)
    file.seek(0)
    return mge.load(file)


def test_a_file_needs_no_source(tmp_path: Path) -> None:
    net, x = traced_net()
    traced = tm.trace_module(net, x)
    mge.save(traced, tmp_path / "net.tm")
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=net(x).numpy())
    command = [sys.executable, "-c", LOAD, str(tmp_path / "net.tm"), str(tmp_path / "data.npz")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(traced.graph)


def test_a_file_is_safetensors_with_readable_names(tmp_path: Path) -> None:
    net, x = traced_net()
    mge.save(tm.trace_module(net, x), tmp_path / "net.tm")
    header = (tmp_path / "net.tm").read_bytes()[8:100_000]
    assert b'"state.block0.conv1.weight"' in header
    assert b"pickle" not in header


def test_inside_other_objects_and_twice() -> None:
    net, x = traced_net()
    traced = tm.trace_module(net, x)
    loaded = there_and_back({"net": traced, "epoch": 3, "weight": traced.block0.conv1.weight})
    same(loaded["net"](x), net(x))
    assert loaded["weight"] is loaded["net"].block0.conv1.weight
    same(there_and_back(loaded["net"])(x), net(x))


def test_loaded_modules_train_and_are_edited() -> None:
    net = Attention()
    x = images(2, 5, 8)
    loaded = there_and_back(tm.trace_module(net, x))
    assert [n for n, _ in loaded.named_parameters()] == [n for n, _ in net.named_parameters()]
    gm = mge.autodiff.GradManager().attach(loaded.parameters())
    with gm:
        gm.backward(loaded(x).sum())
    assert all(p.grad is not None for p in loaded.parameters())
    out = loaded.graph.outputs[0]
    with loaded.graph.insert_exprs():
        negative = -out
    loaded.graph.replace_node({out: negative})
    same(loaded(x), -net(x))


def test_modes_and_options_are_kept() -> None:
    net, x = Inverted(), images(1, 4, 6, 6)
    settle(net, x)
    loaded = there_and_back(tm.trace_module(net, x))
    assert not loaded.training
    assert repr(loaded.heads["a"]) == repr(net.heads["a"])
    same(loaded(x), net(x))


class OwnConv(M.ConvBnRelu2d):
    """Not one of Treadle's: it is looked into."""


class OwnQat(M.qat.ConvBnRelu2d):
    """The same, for training that knows it will be quantized."""


def test_layers_for_quantization_keep_their_quantizers_when_flattened() -> None:
    net = M.Sequential(OwnConv(3, 3, 1), M.ReLU())
    qat = quantize_qat(net, qconfig=ema_fakequant_qconfig, mapping={OwnConv: OwnQat})
    qat.eval()
    x = images(1, 3, 4, 4)
    traced = tm.trace_module(qat, x)
    inner = getattr(traced, "0")
    assert inner.weight_fake_quant is not None and inner.act_observer is not None
    flat = traced.flatten()
    nodes = flat.graph.nodes(recursive=False)
    node = next(n for n in nodes if isinstance(n, tm.ModuleNode) and n.owner is not flat)
    assert isinstance(node.owner, tm.TracedModule) and node.owner.is_qat
    assert [e.method for e in node.users] == ["__call__"]
    same(flat(x), qat(x))
    same(there_and_back(flat)(x), qat(x))
    assert not tm.trace_module(M.Sequential(M.ReLU()), x).is_qat


def test_quantized_modules() -> None:
    class Net(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = M.QuantStub(), M.DequantStub()
            self.conv, self.more = M.ConvBnRelu2d(3, 4, 3), M.Conv2d(4, 2, 1)

        def forward(self, x: Any) -> Any:
            return self.dequant(self.more(self.conv(self.quant(x))))

    net, x = Net(), images(2, 3, 6, 6)
    qat = quantize_qat(tm.trace_module(net, x), qconfig=ema_fakequant_qconfig)
    for _ in range(3):
        qat(x)
    qat.eval()
    traced = tm.trace_module(qat, x)
    nodes = [n for n in traced.graph.nodes() if isinstance(n, TensorNode) and n.qparams]
    assert {n.name for n in nodes} >= {"quant_out", "conv_out", "more_out"}
    same(there_and_back(traced)(x), qat(x))
    integers = quantize(qat)
    traced = tm.trace_module(integers, x)
    same(there_and_back(traced)(x), integers(x))


class Stranger:
    pass


def test_what_cannot_be_named_is_refused() -> None:
    def hidden(x: Any) -> Any:
        return x

    class Odd(M.Module):
        def forward(self, x: Any, f: Any) -> Any:
            return x + 1

    traced = tm.trace_module(Odd(), images(2), hidden)
    with pytest.raises(TypeError, match="which cannot be named in a file"):
        there_and_back(traced)
    net = M.Sequential(M.Linear(2, 2))
    net[0].extra = Stranger()
    traced = tm.trace_module(net, images(1, 2))
    with pytest.raises(TypeError, match="which cannot be named in a file"):
        there_and_back(traced)


def test_registered_classes_must_be_known_when_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    @tm.register_as_builtin
    class Own(M.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    file = io.BytesIO()
    mge.save(tm.trace_module(M.Sequential(Own()), images(2)), file)
    monkeypatch.setattr(tm.catalog, "_OPAQUE", set())
    file.seek(0)
    with pytest.raises(CheckpointError, match="register_as_builtin"):
        mge.load(file)


def _plain() -> dict[str, Any]:
    net, x = traced_net()
    return codec.to_plain(tm.trace_module(net, x))


def _first_expr(plain: dict[str, Any], kind: str) -> list[Any]:
    for record in plain["modules"]:
        for graph in record[3] if record[0] == "traced" else []:
            for expr in graph["exprs"]:
                if expr[0] == kind:
                    found: list[Any] = expr
                    return found
    raise LookupError(kind)


HOSTILE = {
    "class": lambda p: p["modules"].insert(0, ["builtin", "subprocess:Popen", {}]),
    "module class": lambda p: p["modules"].insert(0, ["builtin", "treadle.module.init:math", {}]),
    "method": lambda p: _first_expr(p, "CallMethod")[1].update(method="__reduce_ex__"),
    "function": lambda p: _first_expr(p, "CallFunction")[1].update(func=["function", "os.system"]),
    "tag": lambda p: _first_expr(p, "CallFunction")[1].update(func=["eval", "1"]),
    "node": lambda p: _first_expr(p, "CallFunction")[2].__setitem__(0, 10_000),
    "negative node": lambda p: _first_expr(p, "CallFunction")[2].__setitem__(0, -1),
    "field": lambda p: _first_expr(p, "CallFunction")[1].update(interpret=1),
    "expression": lambda p: _first_expr(p, "CallFunction").__setitem__(0, "Popen"),
    "hooks": lambda p: p["modules"][0][2].update(_forward_hooks=["dict", []]),
    "graphs": lambda p: p["modules"][-1][2].update(_graphs=["list", []]),
    "root": lambda p: p.update(root=0),
    "format": lambda p: p.update(format=99),
    "nothing": lambda p: p.clear(),
    "records": lambda p: p.update(modules=[["builtin"]]),
    "attributes": lambda p: p["modules"][-1].__setitem__(2, ["x"]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case: str) -> None:
    plain = _plain()
    HOSTILE[case](plain)
    with pytest.raises((CheckpointError, KeyError, ValueError, TypeError, IndexError)):
        codec.from_plain(plain)


@pytest.mark.parametrize("path", ["__class__.__init__.__globals__", "__class__", "training"])
def test_paths_do_not_leave_modules(path: str) -> None:
    plain = _plain()
    _first_expr(plain, "GetAttr")[1]["name"] = path
    with pytest.raises(EditError):
        codec.from_plain(plain)(images(1, 8, 3, 3))


def test_modules_are_called_and_nothing_else() -> None:
    plain = _plain()
    _first_expr(plain, "CallMethod")[1]["method"] = "load_state_dict"
    with pytest.raises(EditError, match="this cannot be called"):
        codec.from_plain(plain)(images(1, 8, 3, 3))


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OPDEF_LOADER", "FUNCTIONAL_LOADER", "MODULE_LOADER", "TENSORMETHOD_LOADER"):
        monkeypatch.setattr(serialization, name, {})
    yield


def cast_before(expr: Any, node: TensorNode, dtype: Any) -> TensorNode:
    """A cast that a loader makes."""
    cast = CallMethod(node, "astype")
    out = TensorNode(cast, shape=node.shape, dtype=dtype, qparams=node.qparams)
    cast.set_args_kwargs(node, dtype)
    cast.return_val = (out,)
    return out


@pytest.mark.usefixtures("loaders")
def test_loaders_change_what_is_read() -> None:
    class Net(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = M.Conv2d(3, 4, 1)

        def forward(self, x: Any, w: Any) -> Any:
            return np.sqrt(F.relu(F.conv2d(self.conv(x), w))) + 1

    net, x, w = Net(), images(1, 3, 4, 4), images(2, 4, 1, 1)
    traced, y = tm.trace_module(net, x, w), net(x, w)
    versions: list[Any] = []

    @tm.register_functional_loader(("megengine.functional.nn", "conv2d"))
    def _conv2d(expr: Any) -> None:
        versions.append(expr.version)
        expr.set_arg("weight", cast_before(expr, expr.named_args["weight"], np.float32))

    @tm.register_module_loader(("megengine.module.conv", "Conv2d"))
    def _layer(expr: Any) -> None:
        args = list(expr.args)
        args[1] = cast_before(expr, args[1], expr.inputs[0].owner.weight.dtype)
        expr.set_args_kwargs(*args)

    @tm.register_tensor_method_loader("__add__")
    def _add(expr: Any) -> None:
        node = Constant(mge.tensor(2.0), "two").outputs[0]
        expr.set_args_kwargs(expr.args[0], node)

    @tm.register_opdef_loader(Sqrt, Neg)
    def _sqrt(expr: Any) -> None:
        expr.opdef = Neg()

    for loaded in (there_and_back(traced), pickle.loads(pickle.dumps(traced))):
        same(loaded(x, w), 2 - (y - 1) * (y - 1))
        assert loaded.graph.get_method_by_type("astype").as_count() == 2
        _is_in_order(loaded)
    assert versions == [mge.__version__] * 2
    assert str(copy.deepcopy(traced).graph) == str(traced.graph)  # a copy is no file


def _is_in_order(traced: Any) -> None:
    """Names and numbers are single, and every node knows its users."""
    nodes = traced.graph.nodes().as_list()
    for each in ([n.name for n in nodes], [n._id for n in nodes]):
        assert len(set(each)) == len(each)
    for node in nodes:
        uses = [e for e in traced.graph._exprs for n in e.inputs if n is node]
        assert sorted(e._id for e in node.users) == sorted(e._id for e in uses)


@pytest.mark.usefixtures("loaders")
def test_definitions_of_ops_are_recorded_saved_and_changed_by_loaders() -> None:
    plus = builtin.MEMBERS["Elemwise"]("ADD")

    class Net(M.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return F.exp(internals.apply(plus, x, y)[0])

    x, y = images(2, 3), images(3)
    traced = tm.trace_module(Net(), x, y)
    (found,) = [e for e in traced.graph.exprs() if isinstance(e, tm.Apply)]
    assert found.opdef == plus
    same(traced(x, y), F.exp(x + y))
    same(there_and_back(traced)(x, y), F.exp(x + y))
    with traced.graph.insert_exprs():
        twice = internals.apply(plus, *[traced.graph.outputs[0]] * 2)[0]
    traced.graph.replace_node({traced.graph.outputs[0]: twice})
    same(traced(x, y), 2 * F.exp(x + y))

    @tm.register_opdef_loader(type(plus))
    def _times(expr: Any) -> None:
        expr.opdef_state["mode"] = "MUL"
        expr.inputs[1] = cast_before(expr, expr.inputs[1], np.float32)

    for loaded in (there_and_back(traced), pickle.loads(pickle.dumps(traced))):
        same(loaded(x, y), F.exp(x * y) ** 2)
        _is_in_order(loaded)
    assert found.opdef == plus  # the one in the program stays


@pytest.mark.usefixtures("loaders")
def test_what_a_loader_puts_behind_an_expression_joins_the_graph() -> None:
    class Net(M.Module):
        def forward(self, x: Any) -> Any:
            return F.square(x)

    @tm.register_functional_loader(("megengine.functional.elemwise", "square"))
    def _square(expr: Any) -> None:
        last = expr.outputs[0]
        expr.return_val = (TensorNode(expr, shape=last.shape, dtype=last.dtype),)
        cast = CallMethod(expr.outputs[0], "astype")
        cast.set_args_kwargs(expr.outputs[0], "float16")
        last.expr = cast
        cast.return_val = (last,)

    x = images(2, 3)
    loaded = there_and_back(tm.trace_module(Net(), x))
    assert loaded(x).dtype == np.float16
    _is_in_order(loaded)
