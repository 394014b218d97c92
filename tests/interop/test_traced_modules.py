"""Traced modules that MegEngine 1.13 pickled, and what files of others or of nobody say.

`traced_modules.zip` is what `make_traced_modules.py` wrote under MegEngine. Files of earlier
versions are made of these by what MegEngine's sources of these versions write otherwise.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.interop.pickle_editor import Thing, closed, named, opened

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.traced_module as tm
from treadle.base.errors import CheckpointError
from treadle.interop.megengine.pickled import layers
from treadle.jit import trace
from treadle.serialization import pickle_machine
from treadle.traced_module import catalog, serialization

FILES = Path(__file__).with_name("traced_modules.zip")
with zipfile.ZipFile(FILES) as _archive:
    CASES = sorted(n.removesuffix(".in.npz") for n in _archive.namelist() if n.endswith(".in.npz"))
ROUNDED = {"quantized": 0.05}
"""Results in whole steps; the largest value of all lies between two, and either is taken."""


def read(name: str) -> bytes:
    with zipfile.ZipFile(FILES) as archive:
        return archive.read(name)


def arrays(name: str) -> list[Any]:
    with np.load(io.BytesIO(read(name))) as data:
        return [data[key] for key in data.files]


def load(data: bytes) -> Any:
    return mge.load(io.BytesIO(data))


def call(module: Any, name: str) -> Any:
    x, *more = map(mge.Tensor, arrays(f"{name}.in.npz"))
    if name == "keywords":
        return module(x, w=more[0])
    if name == "nested":
        return module(x, {"a": more[:2], "b": more[2]}, "mode")
    return module(x, *more)


def leaves(value: Any) -> list[Any]:
    return tm.pytree.tree_flatten(value)[0]  # type: ignore[attr-defined]


def check(results: Any, name: str) -> None:
    expected = arrays(f"{name}.out.npz")
    found = [x.numpy() for x in leaves(results)]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        near = {"rtol": 1e-4, "atol": ROUNDED.get(name, 1e-5)}
        np.testing.assert_allclose(mine, theirs, **near)
        if name in ROUNDED:
            assert (np.abs(mine - theirs) > 1e-5).mean() < 0.05


@pytest.fixture
def registrations() -> Iterator[None]:
    """What the program that wrote `registered` registers."""

    def scaled(x: Any, k: float = 2) -> Any:
        return x * k + 1

    class Registered(M.Module):
        def forward(self, x: Any) -> Any:
            return self.inner(x) * self.w + self.k

    scaled.__module__, scaled.__qualname__ = "__main__", "scaled"
    Registered.__module__, Registered.__qualname__ = "__main__", "Registered"
    tm.wrap(scaled)
    tm.register_as_builtin(Registered)
    yield
    catalog._WRAPPED.pop("__main__:scaled")
    catalog._OPAQUE.discard(Registered)


# -- files of 1.13 -------------------------------------------------------------------------------


@pytest.mark.usefixtures("registrations")
@pytest.mark.parametrize("name", CASES)
def test_loads_and_computes_what_it_did(name: str, tmp_path: Path) -> None:
    found = load(read(f"{name}.tm"))
    assert type(found) is tm.TracedModule
    check(call(found, name), name)
    check(call(found.flatten(), name), name)
    mge.save(found, tmp_path / "again.tm")
    check(call(mge.load(tmp_path / "again.tm"), name), name)


@pytest.mark.parametrize("name", ["net", "functions", "in_place", "shapes", "definitions", "qat"])
def test_traces_and_dumps(name: str) -> None:
    found = load(read(f"{name}.tm"))
    traced = trace(lambda x: leaves(found(x)), symbolic=True, capture_as_const=True)
    for _ in range(2):
        check(traced(mge.Tensor(arrays(f"{name}.in.npz")[0])), name)
    file = io.BytesIO()
    traced.dump(file)
    assert file.tell() > 1000


def test_trains_on() -> None:
    found = load(read("net.tm"))
    found.train()
    x = mge.Tensor(arrays("net.in.npz")[0])
    with mge.autodiff.GradManager().attach(found.parameters()) as manager:
        manager.backward(sum(v.sum() for v in found(x).values()))
    assert all(p.grad is not None for p in found.parameters())
    assert len(list(found.parameters())) == 18


def test_has_the_graph_that_was_written() -> None:
    graph = load(read("net.tm")).graph
    text = repr(graph)
    assert 'blocks_0 = getattr(self, "blocks.0")' in text
    assert "flatten_out = F.flatten(adaptive_avg_pool2d_out, 1, -1)" in text
    assert graph.qualname == "Net"
    names = [node.qualname for node in graph.nodes()]
    assert {"Net.[x]", "Net.stem.[out]", "Net.blocks.0.conv", "Net.[func_flatten]"} <= set(names)
    numbers = [expr._id for expr in graph.exprs()]
    assert numbers == list(range(len(numbers)))
    calls = graph.get_function_by_type(F.flatten).as_list()
    assert [expr.version for expr in calls] == ["1.13.0"]
    assert calls[0].inputs[0].shape == (2, 4, 1, 1)
    assert len(graph.get_module_by_type(M.Conv2d).as_list()) == 2


def test_several_in_a_container_share_nothing_but_themselves() -> None:
    found = load(read("several.tm"))
    assert found["more"][1] == 3
    check(call(found["model"], "net"), "net")
    check(call(found["more"][0], "net"), "net")


def test_protocol_2() -> None:
    check(call(load(read("flat.tm")), "net"), "net")


def test_loaders_of_the_program_see_its_expressions() -> None:
    seen: list[Any] = []

    @tm.register_functional_loader(("megengine.functional.tensor", "flatten"))
    def _(expr: Any) -> None:
        seen.append(expr.version)

    try:
        load(read("net.tm"))
    finally:
        serialization.FUNCTIONAL_LOADER.clear()
    assert seen == ["1.13.0"]


def test_tensors_and_devices_move_where_the_caller_wants() -> None:
    asked: list[str] = []

    def place(name: str) -> str:
        asked.append(name)
        return "cpu0"

    found = mge.load(io.BytesIO(read("net.tm")), map_location=place)
    assert {str(p.device) for p in found.parameters()} == {"cpu0:0"}
    assert set(asked) == {"xpux:0"}
    assert found.graph.inputs[1].device == "cpu0:0"


# -- changes to files ----------------------------------------------------------------------------


def exprs_of(graph: Thing) -> list[Any]:
    return graph.state["_exprs"]  # type: ignore[no-any-return, attr-defined]


def graph_of(module: Any) -> Any:
    (graph,) = module.state["argdef_graph_map"].values()
    return graph


def called(module: Any, name: str) -> Any:
    """The first call of a function, a method or an op."""
    for expr in exprs_of(graph_of(module)):
        state = expr.state
        op = state.get("opdef_state", {}).get("opdef_type")
        if name in (state.get("method"), state.get("func", (0, 0))[1], getattr(op, "__name__", "")):
            return expr
    raise KeyError(name)


Edit = Callable[[Any, dict[tuple[str, str], type]], None]


def edited(name: str, edit: Edit) -> bytes:
    found, classes = opened(read(f"{name}.tm"))
    edit(found, classes)
    return closed(found)


def unversioned(module: Any) -> None:
    """What 1.6 wrote of expressions: no version."""
    for expr in exprs_of(graph_of(module)):
        expr.state.pop("version", None)


def set_arguments(expr: Any, given: list[Any], keywords: dict[str, Any] | None = None) -> None:
    """Give a call other arguments: nodes and constants, none of them in a container."""
    tree, leaf, classes = type(expr.state["arg_def"]), None, {}
    for each in _trees(expr.state["arg_def"]):
        classes[type(each).__name__] = type(each)
        leaf = each if type(each).__name__ == "LeafDef" else leaf
    everything = [*given, *(keywords or {}).values()]
    is_node = [isinstance(v, Thing) for v in everything]
    expr.state["inputs"] = [v for v, node in zip(everything, is_node, strict=True) if node]
    expr.state["const_val"] = [
        (i, v) for i, (v, node) in enumerate(zip(everything, is_node, strict=True)) if not node
    ]

    def tree_of(kind: type, aux: Any, count: int, below: list[Any] | None = None) -> Any:
        made = tree()
        below = below or [leaf] * count
        made.state = {"type": kind, "aux_data": aux, "children_defs": below, "num_leaves": count}
        return made

    names = tuple(keywords or {})
    positional = tree_of(tuple, None, len(given))
    named_ones = tree_of(dict, names, len(names))
    expr.state["arg_def"] = tree_of(tuple, None, len(everything), [positional, named_ones])


def _trees(tree: Any) -> Iterator[Any]:
    yield tree
    for child in tree.state["children_defs"]:
        yield from _trees(child)


# -- files of earlier versions -------------------------------------------------------------------


def older(module: Any, version: str | None) -> None:
    """Write calls as a version did, of functions whose arguments moved since."""
    node = called(module, "conv_transpose2d").state["inputs"]
    moved: dict[str, list[Any]] = {
        "zeros": [(2, 3), "float32", None],
        "ones": [(3,), "float32", None],
        "full": [(2,), 3.0, None, None],
        "arange": [5.0, None, 1, "float32", None],
        "linspace": [0, 1, 5, "float32", None],
        "conv_transpose2d": [*node, None, 2, 0, 1, 1, "cross_correlation", "default"],
        "matmul": [*called(module, "matmul").state["inputs"], False, False, "default", "default"],
    }
    for name, given in moved.items():
        set_arguments(called(module, name), given)
    pad = called(module, "pad").state["inputs"]
    set_arguments(called(module, "pad"), pad, {"pad_witdth": ((1, 1), (0, 0))})
    prelu = called(module, "prelu").state["inputs"]
    set_arguments(called(module, "prelu"), [], dict(zip(("inp", "weight"), prelu, strict=True)))
    if version is None:
        unversioned(module)
        return
    for expr in exprs_of(graph_of(module)):
        expr.state["version"] = version


@pytest.mark.parametrize("version", [None, "1.7.0"])
def test_arguments_that_moved(version: str | None) -> None:
    found = load(edited("functions", lambda module, _: older(module, version)))
    check(call(found, "functions"), "functions")
    assert hasattr(found.graph.exprs().as_list()[-1], "version") == (version is not None)


def test_paths_and_names_of_1_6() -> None:
    def edit(module: Any, classes: Any) -> None:
        older(module, None)
        graph = graph_of(module)
        state = graph.state
        state["_module_name"], state["_prefix_name"] = state.pop("_qualname"), ""
        nodes = [*state["_inputs"], *(n for e in exprs_of(graph) for n in e.state["outputs"])]
        for node in nodes:
            path = node.state.pop("_qualname")
            node.state["_orig_name"] = path.replace("[", "").replace("]", "")
        for expr in exprs_of(graph):
            if type(expr).__name__ == "CallFunction":  # 1.6 wrote functions by reference
                expr.state["func"] = named(*expr.state["func"], classes)

    found = load(edited("functions", edit))
    check(call(found, "functions"), "functions")
    assert "Functions.[func_softmax]" in [node.qualname for node in found.graph.nodes()]
    assert found.graph.qualname == "Functions"


def test_ops_of_1_6() -> None:
    def edit(module: Any, classes: Any) -> None:
        unversioned(module)
        for expr in exprs_of(graph_of(module)):
            if type(expr).__name__ == "Apply":
                state = expr.state.pop("opdef_state")
                state["type"] = state.pop("opdef_type")
                expr.state["opdef"] = state

    check(call(load(edited("definitions", edit)), "definitions"), "definitions")


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.11.1", "float32"), ("1.12.0", "int32"), (None, "float32")],
)
def test_squares_of_integers_were_floats(version: str | None, expected: str) -> None:
    def edit(module: Any, _: Any) -> None:
        square = called(module, "square")
        (taken,) = square.state["inputs"]
        taken.state["_dtype"] = np.dtype("int32")
        if version is None:
            square.state.pop("version")
        else:
            square.state["version"] = version

    found = load(edited("functions", edit))
    (square,) = found.graph.get_function_by_type(F.square).as_list()
    (result,) = square.interpret(mge.Tensor([2, 3], dtype="int32"))
    for cast in square.outputs[0].users:
        (result,) = cast.interpret(result)
    assert str(result.dtype) == expected
    assert found.graph.outputs[-3].name == "square_out"


def test_layers_of_1_6_lack_what_later_ones_have() -> None:
    def edit(module: Any, _: Any) -> None:
        unversioned(module)
        for layer in _layers(module):
            layer.pop("padding_mode", None)
            layer.pop("_short_name", None)
            if "running_mean" in layer:
                layer.update(param_dim="dim_1c11", compute_mode="default")

    check(call(load(edited("net", edit)), "net"), "net")


def _layers(module: Any) -> Iterator[dict[str, Any]]:
    for value in module.state.values():
        if type(value).__name__ == "_ModuleState":
            yield value.state["state"]
            yield from (v.state for v in value.state["state"].values() if isinstance(v, Thing))
        elif type(value).__name__ == "TracedModule":
            yield from _layers(value)


# -- files of nobody -----------------------------------------------------------------------------


def _unknown_function(module: Any, _: Any) -> None:
    called(module, "softmax").state["func"] = ("os", "system")


def _unknown_method(module: Any, _: Any) -> None:
    called(module, "reshape").state["method"] = "__reduce__"


def _unknown_attribute(module: Any, _: Any) -> None:
    graph = graph_of(module)
    getter = next(e for e in exprs_of(graph) if type(e).__name__ == "GetAttr")
    getter.state["name"] = "__class__.__init__"


def _missing_node(module: Any, _: Any) -> None:
    exprs = exprs_of(graph_of(module))
    exprs.remove(called(module, "softmax"))


def _circle(module: Any, _: Any) -> None:
    softmax = called(module, "softmax")
    softmax.state["inputs"] = softmax.state["outputs"]


def _twice(module: Any, _: Any) -> None:
    softmax, neg = called(module, "softmax"), called(module, "__neg__")
    neg.state["outputs"] = softmax.state["outputs"]


def _not_a_node(module: Any, _: Any) -> None:
    called(module, "softmax").state["inputs"] = ["x"]


def _not_a_tree(module: Any, _: Any) -> None:
    called(module, "softmax").state["arg_def"] = "tree"


def _too_few(module: Any, _: Any) -> None:
    called(module, "softmax").state["const_val"] = []


def _other_arguments(module: Any, _: Any) -> None:
    softmax = called(module, "softmax")
    set_arguments(softmax, [*softmax.state["inputs"], 1, 2, 3, 4])


def _not_an_expression(module: Any, classes: Any) -> None:
    made = named("megengine.traced_module.expr", "Exec", classes)()
    made.state = {"inputs": [], "outputs": [], "_id": 1}
    exprs_of(graph_of(module)).append(made)


def _itself(module: Any, _: Any) -> None:
    module.state["inner"] = module


def _hooks(module: Any, _: Any) -> None:
    module.state["_forward_hooks"] = {1: "code"}


def _deep(module: Any, _: Any) -> None:
    value: Any = ()
    for _i in range(300):
        value = (value,)
    module.state["more"] = value


def _wide(module: Any, _: Any) -> None:
    value: Any = ()
    for _i in range(60):
        value = (value, value)
    module.state["more"] = value


def _code(module: Any, classes: Any) -> None:
    module.state["more"] = named("os", "system", classes)("true")


def _recurrent(module: Any, field: str, value: Any) -> None:
    next(s for s in _layers(module) if "_flatten_weights" in s)[field] = value


def _other_sizes(module: Any, _: Any) -> None:
    _recurrent(module, "hidden_size", 5)


def _fewer_cells(module: Any, _: Any) -> None:
    _recurrent(module, "cells", [])


def _no_weights(module: Any, _: Any) -> None:
    _recurrent(module, "_flatten_weights", 3)


def _other_cells(module: Any, _: Any) -> None:
    cells = [s["cells"] for s in _layers(module) if "_flatten_weights" in s]
    cells[0][0][0] = next(c[0][0] for c in cells if c[0][0].state["gate_hidden_size"] == 16)


def _unknown_layer(module: Any, _: Any) -> None:
    made = named("megengine.traced_module.serialization", "_ModuleState", {})()
    made.state = {"module": ("subprocess", "Popen"), "state": {}, "version": "1.13.0"}
    module.state["more"] = made


BROKEN: list[tuple[Edit, str]] = [
    (_unknown_function, r"CallFunction os\.system for node softmax_out of TracedModule"),
    (_unknown_method, r"CallMethod __reduce__ for node reshape_out of TracedModule"),
    (_unknown_attribute, r"GetAttr __class__\.__init__ for node c of TracedModule"),
    (_missing_node, r"concat for node concat_out of TracedModule uses node softmax_out"),
    (_circle, r"softmax for node softmax_out of TracedModule uses node softmax_out"),
    (_twice, r"node softmax_out of TracedModule is made twice"),
    (_not_a_node, r"softmax for node softmax_out of TracedModule uses node str"),
    (_not_a_tree, r"a tree of arguments is a str"),
    (_too_few, r"softmax for node softmax_out of TracedModule takes 2 values, and has 1"),
    (_other_arguments, r"softmax for node softmax_out of TracedModule has other arguments"),
    (_not_an_expression, r"Exec None of TracedModule is no expression"),
    (_itself, r"TracedModule\.inner contains itself"),
    (_hooks, r"TracedModule has hooks, which are code"),
    (_deep, r"TracedModule\.more nests deeper than 100"),
    (_wide, r"more small objects than any checkpoint has"),
    (_code, r"names 'os\.system', which is not loaded"),
    (_unknown_layer, r"TracedModule\.more is a subprocess\.Popen"),
]


@pytest.mark.parametrize(("edit", "message"), BROKEN, ids=lambda v: getattr(v, "__name__", ""))
def test_refuses_and_says_which_op_and_node(edit: Edit, message: str) -> None:
    data = edited("functions", edit)
    with pytest.raises(CheckpointError, match=message):
        load(data)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_other_sizes, "does not have as many weights as its sizes say"),
        (_fewer_cells, "are not those of its layers"),
        (_other_cells, "are not those of its layers"),
        (_no_weights, "are not a matrix"),
    ],
)
def test_refuses_recurrent_layers_with_other_weights(edit: Edit, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(edited("recurrent", edit))


def test_says_in_which_order_weights_of_several_cells_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    log = SimpleNamespace(warning=lambda text, *values: said.append(text % values))
    monkeypatch.setattr(layers, "get_logger", lambda: log)
    load(read("recurrent.tm"))
    assert len(said) == 5  # Those with biases, and more than one cell.
    assert all("order of MegEngine's CPU" in text for text in said)


def test_objects_of_expressions_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_machine, "_ALL_OBJECTS", 256 << 10)
    check(call(load(read("functions.tm")), "functions"), "functions")
    monkeypatch.setattr(pickle_machine, "_PER_BYTE", 0)
    with pytest.raises(CheckpointError, match="more small objects"):
        load(read("functions.tm"))


def test_expressions_that_are_none_buy_what_the_file_could_have() -> None:
    made = b"cmegengine.traced_module.expr\nApply\nq\x00" + b"h\x00)\x81" * 1000
    again = b"h\x00" * 2_000_000  # 128 bytes of objects each, in two.
    with pytest.raises(CheckpointError, match="more small objects") as error:
        load(b"\x80\x02(" + made + again + b"l.")
    # 24 kB for each of the thousand are 24.6 MB, beside 128 MB.
    (at,) = map(int, re.findall(r"before byte (\d+)", str(error.value)))
    assert at < 2 * (153 << 20) / 128


def test_refuses_ops_that_have_no_counterpart() -> None:
    def unknown(module: Any, classes: Any) -> None:
        state = called(module, "Dimshuffle").state["opdef_state"]
        state["opdef_type"] = named("megengine.core._imperative_rt.ops", "Nonsense", classes)

    def other(module: Any, _: Any) -> None:
        called(module, "MatrixMul").state["opdef_state"]["format"] = "MK4"

    with pytest.raises(CheckpointError, match="Apply Nonsense for node dimshuffle_out"):
        load(edited("definitions", unknown))
    with pytest.raises(CheckpointError, match=r"MatrixMul .* has a parameter format"):
        load(edited("definitions", other))


def test_refuses_functions_and_layers_that_the_program_has_not_registered() -> None:
    with pytest.raises(CheckpointError, match=r"__main__\.Registered") as error:
        load(read("registered.tm"))
    assert "register_as_builtin" in str(error.value)


def test_refuses_a_graph_that_lacks_a_field() -> None:
    """Whatever field is gone, or of another type, the error is one of files."""
    for key in ("_exprs", "_inputs", "_outputs", "_name"):
        for value in (None, 3, "text", [3]):

            def edit(module: Any, _: Any, key: str = key, value: Any = value) -> None:
                graph_of(module).state[key] = value

            if (key, value) in (("_name", None), ("_name", "text")):
                continue
            with pytest.raises(CheckpointError):
                load(edited("nested", edit))
