"""What a trace writes down, and that it gives what the module gives."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import logged
from tests.traced_module import nets
from tests.traced_module.nets import images, same

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.traced_module as tm
from treadle.base.errors import EditError, TraceError
from treadle.functional import relu as imported_relu
from treadle.traced_module import Apply, CallFunction, CallMethod, Constant, TracedModule

Pair = namedtuple("Pair", "first second")


def module_of(forward: Any, **attributes: Any) -> M.Module:
    """A module around a `forward`."""

    class Made(M.Module):
        def __init__(self) -> None:
            super().__init__()
            for key, value in attributes.items():
                setattr(self, key, value)

    Made.forward = forward
    Made.__abstractmethods__ = frozenset()
    return Made()


def forms(traced: TracedModule) -> list[TracedModule]:
    """The traced module, flattened, copied, pickled, saved."""
    file = io.BytesIO()
    mge.save(traced, file)
    file.seek(0)
    return [
        traced,
        traced.flatten(),
        copy.deepcopy(traced),
        pickle.loads(pickle.dumps(traced)),
        mge.load(file),
    ]


def check(module: M.Module, *calls: Any) -> TracedModule:
    """Trace with the first arguments, compare with the module on all."""
    module.eval()
    traced = tm.trace_module(module, *copy.deepcopy(calls[0]))
    for form in forms(traced):
        for args in calls:
            same(form(*copy.deepcopy(args)), module(*copy.deepcopy(args)))
    return traced


@pytest.mark.parametrize(
    ("net", "shape", "other"),
    [
        (nets.Net, (1, 8, 3, 3), (2, 8, 5, 4)),
        (nets.Rnn, (3, 2, 3), (3, 5, 3)),
        (nets.Attention, (2, 5, 8), (3, 7, 8)),
        (nets.Inverted, (1, 4, 6, 6), (3, 4, 5, 5)),
        (lambda: M.Sequential(M.Linear(3, 4), M.ReLU(), M.Linear(4, 2)), (2, 3), (5, 3)),
        (lambda: M.Sequential(M.LSTM(3, 4)), (5, 2, 3), (7, 2, 3)),
        (lambda: M.Linear(3, 2), (2, 3), (4, 3)),
    ],
    ids=["net", "rnn", "attention", "inverted", "sequential", "lstm", "linear"],
)
def test_models_give_the_same_also_on_other_shapes(net: Any, shape: Any, other: Any) -> None:
    module = net()
    nets.settle(module, images(*shape))
    check(module, (images(*shape),), (images(*other),))


def in_place(self: Any, x: Any) -> Any:
    y = x * 1
    y += 1
    y[:, 0] = 5
    other = y
    other *= 2
    return y, other


CASES = {
    "imported": lambda self, x: imported_relu(x - 0.5),
    "operators": lambda self, x: 1 - x + 2 / (x + 1) - (-x) + abs(x) + x**2 + 2**x,
    "compare": lambda self, x: F.where(x > 0.5, x, -x) + (x == x).astype("float32") + (x != 1),
    "numpy function": lambda self, x: np.sin(x) + np.float32(2) * x,
    "copy": lambda self, x: mge.Tensor(x) * 2,
    "transpose": lambda self, x: F.stack([row * 2 for row in x.T]),
    "shape": lambda self, x: x.flatten().reshape(x.shape) + F.zeros((x.shape[0], 3)),
    "extents": lambda self, x: (x.shape[0] * 2 - 1, x.shape, x * x.size),
    "numbers of extents": lambda self, x: (
        x * (1 / x.shape[0]) + (0.5 + x.shape[0] / 2) ** -0.5 - -x.shape[0] % 7,
        x.sum() / x.shape[0] * (x.shape[0] * 1.5 // 2),
        2 ** x.shape[0],
        x.shape[0] / 4,
    ),
    "slice": lambda self, x: x[x.shape[0] - 1 :, None, 1:][..., 0],
    "fancy index": lambda self, x: x[mge.tensor([0, 0])],
    "tensor of extents": lambda self, x: mge.Tensor([x.shape[0], 2]) + mge.Tensor(x.shape[1]),
    "constant": lambda self, x: x + mge.tensor([1.0, 2.0, 3.0]),
    "several": lambda self, x: F.split(x, 3, axis=1),
    "keywords": lambda self, x: F.softmax(x, axis=1) + F.sum(x, axis=1, keepdims=True),
    "types": lambda self, x: (x.astype(np.float16), x.astype("int32"), x.to("cpux")),
    "dict": lambda self, x: {"b": x, "a": [x + 1, (x, 3, "s", None)]},
    "ordered dict": lambda self, x: OrderedDict([("z", x), ("a", x * 2)]),
    "named tuple": lambda self, x: Pair(x, x + 1),
    "nothing": lambda self, x: None,
    "in place": in_place,
}


@pytest.mark.parametrize("case", CASES)
def test_what_forward_may_do(case: str) -> None:
    check(module_of(CASES[case]), (images(2, 3),), (images(5, 3),))


def test_functions_in_attributes_are_calls_of_functions() -> None:
    module = module_of(lambda self, x: self.add(x, 1) + self.acts["r"](x))
    module.add, module.acts = F.add, {"r": F.relu}
    graph = check(module, (images(2, 3),)).graph
    assert [e.func for e in graph.get_function_by_type()] == [F.add, F.relu]


def test_graph_text() -> None:
    net, x = nets.traced_net()
    traced = tm.trace_module(net, x)
    assert repr(traced.graph) == (
        "Net.Graph (self, x) {\n"
        '    %2: block0 = getattr(self, "block0") -> (TracedModule)\n'
        "    %3: block0_out = block0(x)\n"
        '    %16: block1 = getattr(self, "block1") -> (TracedModule)\n'
        "    %17: block1_out = block1(block0_out)\n"
        '    %30: nothing = getattr(self, "nothing") -> (TracedModule)\n'
        "    %31: nothing_out = nothing(block1_out)\n"
        "    return nothing_out\n"
        "}"
    )
    lines = repr(traced.block0.graph).splitlines()
    assert [line.split(": ")[-1] for line in lines[1:7]] == [
        'conv1 = getattr(self, "conv1") -> (Conv2d)',
        "conv1_out = conv1(x)",
        'bn1 = getattr(self, "bn1") -> (BatchNorm2d)',
        "bn1_out = bn1(conv1_out)",
        "relu_out = F.relu(bn1_out)",
        "add_out = relu_out.__add__(1)",
    ]


def test_layers_are_shared_and_other_modules_are_traced() -> None:
    net, x = nets.traced_net()
    traced = tm.trace_module(net, x)
    assert traced.block0.conv1 is net.block0.conv1
    assert isinstance(traced.block0, TracedModule)
    assert traced.state_dict().keys() == net.state_dict().keys()
    assert [n.qualname for n in traced.block0.graph.nodes(recursive=False)][:4] == [
        "Net.block0",
        "Net.block0.[x]",
        "Net.block0.conv1",
        "Net.block0.conv1.[out]",
    ]


def test_a_cell_has_a_graph_for_each_structure_of_arguments() -> None:
    traced = tm.trace_module(nets.Rnn(), images(3, 2, 3))
    assert len(traced.cell.argdef_graph_map) == 2
    with pytest.raises(EditError, match="2 graphs"):
        _ = traced.cell.graph
    x, h = images(2, 3), images(2, 4)
    same(traced.cell(x, h=h), traced.cell(x, h))
    traced.cell(x)


def test_a_module_that_does_another_thing_each_time_has_variants() -> None:
    class Alternating(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.p, self.q = 0, mge.Parameter([1.0]), mge.Parameter([3.0])

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * (self.p if self.count % 2 else self.q)

    module = module_of(lambda self, x: self.a(x) + self.a(x) * 10)
    module.a = Alternating()
    x = images(2, 3)
    traced = tm.trace_module(module, x)
    for form in forms(traced):
        np.testing.assert_allclose(form(x).numpy(), x.numpy() * 31, rtol=1e-5)


def test_constants_that_are_changed_are_made_anew() -> None:
    def forward(self: Any, x: Any) -> Any:
        total = mge.Tensor([1.0, 2.0, 3.0])
        before = total * 2
        total += x.sum()
        total[0] = 5.0
        return total, before

    module, x = module_of(forward), images(2, 3)
    for form in forms(tm.trace_module(module, x)):
        for _ in range(3):
            same(form(x), module(x))


def test_tensors_of_elsewhere_are_changed() -> None:
    total = F.zeros((1,))
    module = module_of(lambda self, x: total.__iadd__(1) + x)
    traced = tm.trace_module(module, images(2, 3))
    traced(images(2, 3))
    traced(images(2, 3))
    assert total.item() == 3


def test_state_goes_on_from_call_to_call() -> None:
    class Stateful(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h, self.count = F.zeros((2, 3)), F.zeros((1,))

        def forward(self, x: Any) -> Any:
            self.h = self.h * 0.5 + x
            self.count += 1
            return self.h + self.count

    x, eager = images(2, 3), Stateful()
    traced = tm.trace_module(Stateful(), x)
    eager(x)
    for _ in range(3):
        same(traced(x), eager(x))


def test_arguments_are_named_bound_and_checked() -> None:
    class Args(M.Module):
        def forward(self, d: Any, *rest: Any, scale: float = 2.0, **more: Any) -> Any:
            return d["a"] * scale + sum(rest) + more.get("b", 0)

    x = images(2, 3)
    traced = tm.trace_module(Args(), {"a": x, "z": x}, x, x, scale=3.0, b=x)
    names = [node.name for node in traced.graph.inputs]
    assert names == ["self", "d_a", "d_z", "rest_0", "rest_1", "b"]
    same(traced({"z": x, "a": x}, x, x, b=x, scale=3.0), x * 6)
    with pytest.raises(TraceError, match="another structure"):
        traced({"a": x, "z": x}, x, scale=3.0, b=x)
    with pytest.raises(TraceError, match="another structure"):
        traced({"a": x, "z": x}, x, x, scale=4.0, b=x)
    with pytest.raises(TraceError, match="missing a required argument"):
        traced()


def test_one_tensor_passed_twice_is_two_arguments() -> None:
    x, y = images(2, 3), images(3, 2).T
    traced = tm.trace_module(module_of(lambda self, a, b: a - b), x, x)
    same(traced(x, y), x - y)


def test_the_caller_sees_changes_of_arguments() -> None:
    inner = module_of(lambda self, x: x.__iadd__(1) * 2)
    outer = module_of(lambda self, x: self.m(x) + x)
    outer.m = inner
    x = images(2, 3)
    before = x.numpy().copy()
    traced = tm.trace_module(outer, x)
    np.testing.assert_array_equal(x.numpy(), before)
    np.testing.assert_allclose(traced(x).numpy(), (before + 1) * 3, rtol=1e-6)
    np.testing.assert_allclose(x.numpy(), before + 1, rtol=1e-6)


def test_values_that_python_reads_are_reported() -> None:
    x, rng = images(2, 3), mge.random.RNG(seed=1)
    with logged() as lines:
        traced = tm.trace_module(module_of(lambda self, x: x * 2 if x.mean() > 0 else -x), x)
        (line,) = lines
        assert "test_trace.py" in line and "bool() of a tensor was read" in line
        tm.trace_module(module_of(lambda self, x: x + rng.uniform(0, 1, (3,))), x)
        assert "uniform() of an RNG object was called" in lines[1]
        tm.trace_module(module_of(lambda self, x: F.dropout(x, 0.5) + mge.random.normal()), x)
        assert len(lines) == 2
    same(traced(-x), -x * 2)


def test_tensors_must_be_passed_to_be_used() -> None:
    class Leak(M.Module):
        def forward(self, x: Any) -> Any:
            self.kept = x * 2
            return x

    module = module_of(lambda self, x: (self.leak(x), self.leak.kept + 1)[1])
    module.leak = Leak()
    with pytest.raises(TraceError, match="used without being passed"):
        tm.trace_module(module, images(2, 3))


@pytest.mark.parametrize("bad", [object(), {1, 2}.__iter__()])
def test_unsupported_arguments(bad: Any) -> None:
    with pytest.raises(TraceError, match="not supported"):
        tm.trace_module(module_of(lambda self, x: x), bad)


def test_no_module() -> None:
    with pytest.raises(TypeError, match="takes a Module"):
        tm.trace_module(F.relu, images(2))


def test_supported_types_and_wrapped_functions() -> None:
    class Box:
        def __init__(self, x: Any, label: str) -> None:
            self.x, self.label = x, label

    tm.register_supported_type(
        Box, lambda b: ([b.x], b.label), lambda parts, label: Box(parts[0], label)
    )
    module = module_of(lambda self, box: Box(scaled(box.x, k=3), box.label))
    x, y = images(2, 3), -images(2, 3)
    for form in forms_without_pickle(tm.trace_module(module, Box(x, "n"))):
        made = form(Box(y, "n"))
        assert made.label == "n"
        same(made.x, -y * 3)
        (call,) = form.graph.get_function_by_type(scaled)
        assert call.kwargs == {"k": 3}
        with pytest.raises(TraceError, match="another structure"):
            form(Box(y, "other"))
    with pytest.raises(TypeError, match="either both functions"):
        tm.register_supported_type(Box, lambda b: ([], None))


def forms_without_pickle(traced: TracedModule) -> list[TracedModule]:
    file = io.BytesIO()
    mge.save(traced, file)
    file.seek(0)
    return [traced, copy.deepcopy(traced), mge.load(file)]


@tm.wrap
def scaled(x: Any, k: int) -> Any:
    """Looks at its argument, which a trace cannot follow."""
    return x * k if x.numpy().sum() > 0 else -x * k


def test_wrap_takes_closures_and_refuses_others() -> None:
    shift = 2.0

    @tm.wrap
    def shifted(x: Any) -> Any:
        return x + shift

    x = images(2, 3)
    traced = tm.trace_module(module_of(lambda self, x: shifted(x) * 2), x)
    assert traced.graph.get_function_by_type(shifted).as_count() == 1
    same(traced(x), (x + 2.0) * 2)
    holder = tm.wrap(lambda x: [object(), x])
    with pytest.raises(TraceError, match="not supported"):
        tm.trace_module(module_of(lambda self, x: holder(x)[1]), x)
    with pytest.raises(TypeError, match="wrap takes a function"):
        tm.wrap(np.sin)


def test_registered_modules_are_kept_whole() -> None:
    @tm.register_as_builtin
    class Whole(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.options = mge.Parameter([2.0]), {"a": (1, 2.0)}

        def forward(self, x: Any) -> Any:
            return x * self.w

    module = module_of(lambda self, x: self.parts[1](self.parts[0](x)))
    module.parts = [Whole(), M.Identity()]
    x = images(2, 3)
    for form in forms_without_pickle(tm.trace_module(module, x)):
        node = form.graph.get_module_by_type(Whole).as_unique()
        assert node.owner.options == {"a": (1, 2.0)}
        same(form(x), x * 2)
    with pytest.raises(TypeError, match="class of modules"):
        tm.register_as_builtin(F.relu)


def test_unknown_functions_become_ops() -> None:
    graph = check(module_of(lambda self, x: np.sqrt(x) + 1), (images(2, 3),)).graph
    kinds = [type(expr) for expr in graph.exprs() if type(expr).__name__ != "Input"]
    assert kinds == [Apply, CallMethod]


def test_tensors_of_elsewhere_are_constants() -> None:
    shift = images(3)
    graph = tm.trace_module(module_of(lambda self, x: x + shift), images(2, 3)).graph
    (constant,) = [expr for expr in graph.exprs() if isinstance(expr, Constant)]
    assert constant.value is shift


def test_training_reaches_the_original() -> None:
    net, x = nets.Rnn(), images(3, 2, 3)
    traced = tm.trace_module(net, x)
    grads = []
    for module in (traced, net):
        gm = mge.autodiff.GradManager().attach(module.parameters())
        with gm:
            gm.backward(module(x)[1].sum())
        grads.append({name: p.grad.numpy() for name, p in net.named_parameters()})
        mge.optimizer.SGD(module.parameters(), lr=0.1).clear_grad()
    for name, grad in grads[0].items():
        np.testing.assert_allclose(grad, grads[1][name], rtol=1e-5)


def test_modes_reach_layers() -> None:
    traced = tm.trace_module(M.Sequential(M.Linear(3, 3), M.Dropout(0.5)), images(2, 3))
    traced.eval()
    same(traced(images(2, 3)), traced(images(2, 3)))
    traced.train()
    assert np.any(traced(F.ones((50, 3))).numpy() == 0)


@pytest.mark.parametrize("door", [mge.jit.compile, mge.jit.trace])
def test_in_compiled_functions(door: Any) -> None:
    net, x = nets.Rnn(), images(3, 2, 3)
    traced = tm.trace_module(net, x)
    run = door(lambda x: traced(x)[0])
    for _ in range(3):
        same(run(x), net(x)[0])


def test_tracing_while_gradients_are_recorded() -> None:
    net, x = nets.Rnn(), images(3, 2, 3)
    gm = mge.autodiff.GradManager().attach(net.parameters())
    with gm:
        traced = tm.trace_module(net, x)
        gm.backward(traced(x)[1].sum())
    assert all(p.grad is not None for p in net.parameters())


def test_nothing_is_left_behind_when_forward_raises() -> None:
    before = (F.relu.__code__, mge.Tensor.__add__, M.Module.__call__)

    def forward(self: Any, x: Any) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        tm.trace_module(module_of(forward), images(2, 3))
    assert before == (F.relu.__code__, mge.Tensor.__add__, M.Module.__call__)
    assert type(images(2, 3).shape[0]) is int


def test_tracing_inside_a_trace_is_refused() -> None:
    inner = nets.Identity()
    with pytest.raises(TraceError, match="already"):
        tm.trace_module(module_of(lambda self, x: tm.trace_module(inner, x)(x)), images(2))


def test_numbers_are_plain_after_the_trace() -> None:
    kept: list[Any] = []
    module = module_of(lambda self, x: (kept.extend([x.shape[0], x.shape[0] / 2]), x)[1])
    tm.trace_module(module, images(2, 3))
    assert [type(n + 1) for n in kept] == [int, float]
    assert [type(n) for n in copy.deepcopy(kept)] == [int, float]
    assert [type(n) for n in pickle.loads(pickle.dumps(kept))] == [int, float]
    assert [n.origin for n in kept] == [None, None]


def test_hooks_and_own_call_methods() -> None:
    class Louder(M.Module):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs) + 1

        def forward(self, x: Any) -> Any:
            return x * 2

    module = module_of(lambda self, x: self.inner(self.fc(x)))
    module.fc, module.inner = M.Linear(3, 3), Louder()
    module.inner.register_forward_pre_hook(lambda m, inputs: (inputs[0] * 2,))
    module.inner.register_forward_hook(lambda m, inputs, outputs: outputs - 1)
    check(module, (images(2, 3),), (images(5, 3),))


def test_long_chains_are_copied_without_recursion() -> None:
    def forward(self: Any, x: Any) -> Any:
        for i in range(520):
            x = x * 0.99 + i
        return x

    module = module_of(forward)
    traced = tm.trace_module(module, images(2, 3))
    for form in forms(traced):
        assert len(form.graph._exprs) == 1040
    same(tm.optimize(traced.flatten(), "NormElemWise")(images(2, 3)), module(images(2, 3)))


def test_modules_without_arguments() -> None:
    module = module_of(lambda self: self.w * 2)
    module.w = mge.Parameter([1.0, 2.0])
    check(module, ())


def test_other_threads_run_on_while_one_traces() -> None:
    results: list[bool] = []

    def forward(self: Any, x: Any) -> Any:
        thread = threading.Thread(target=lambda: results.append(bool((F.relu(x) + 1).sum() > 0)))
        thread.start()
        thread.join()
        return x + 1

    graph = tm.trace_module(module_of(forward), images(2, 3)).graph
    assert results == [True]
    assert len(graph._exprs) == 1


def test_traced_modules_can_be_traced() -> None:
    net, x = nets.traced_net()
    inner = tm.trace_module(net, x)
    module = module_of(lambda self, x: self.inner(x - 1) + 1)
    module.inner = inner
    traced = check(module, (x,))
    assert repr(traced.inner.graph).startswith("Made_inner.Graph (self, x)")


def test_watch_and_end_points() -> None:
    net, x = nets.traced_net()
    traced = tm.trace_module(net, x)
    nodes = [expr.outputs[0] for expr in traced.graph.get_function_by_type(F.relu)]
    traced.set_watch_points(nodes)
    whole = traced(x)
    same(traced.watch_node_value[nodes[1]] + 1, whole)
    assert nodes[0].value is traced.watch_node_value[nodes[0]]
    for form in forms(traced):  # nodes that are watched are not copied
        same(form(x), whole)
        assert len(list(form.named_parameters())) == 6
    traced.clear_watch_points()
    assert traced.watch_node_value == {}
    traced.set_end_points(nodes[0])
    (stopped,) = traced(x)
    same(stopped + 1, net.block0(x))
    traced.clear_end_points()
    same(traced(x), whole)
    other = tm.trace_module(net, x)
    with pytest.raises(EditError, match="not a node of its graphs"):
        traced.set_watch_points(other.graph.outputs[0])


def test_random_functions_draw_anew() -> None:
    module = module_of(lambda self, x: x + mge.random.uniform(0, 1, (2, 3)))
    traced = tm.trace_module(module, images(2, 3))
    one, other = traced(images(2, 3)), traced(images(2, 3))
    assert np.any(one.numpy() != other.numpy())


def test_expressions_are_checked_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tm.trace.SWITCHES, "each_expr", False)
    tm.enable_expr_checker()
    calls: list[int] = []

    @tm.wrap
    def counting(x: Any) -> Any:
        calls.append(1)
        return x + len(calls)

    check(nets.Rnn(), (images(3, 2, 3),))
    with pytest.raises(TraceError, match="differs when the expression runs again"):
        tm.trace_module(module_of(lambda self, x: counting(x)), images(2, 3))
    calls.clear()
    monkeypatch.setattr(tm.trace.SWITCHES, "each_expr", False)
    monkeypatch.setattr(tm.trace.SWITCHES, "graphs", True)
    tm.disable_default_checker()
    assert isinstance(
        tm.trace_module(module_of(lambda self, x: counting(x)), images(2, 3)).graph._exprs[0],
        CallFunction,
    )


def test_one_layer_under_two_names_stays_one() -> None:
    module = module_of(lambda self, x, y: self.b(self.a(x, y), y))
    module.a = module.b = M.Elemwise("ADD")
    x = images(2, 3)
    for form in forms(tm.trace_module(module, x, x)):
        assert form.a is form.b
        same(form(x, x), x * 3)


def test_gradients_of_own_functions_are_kept_by_wrapping() -> None:
    class Doubled(mge.autodiff.Function):
        def forward(self, x: Any) -> Any:
            return x * 1

        def backward(self, dy: Any) -> Any:
            return dy * 2

    @tm.wrap
    def doubled(x: Any) -> Any:
        return Doubled()(x)

    x = images(2, 3)
    traced = tm.trace_module(module_of(lambda self, x: doubled(x)), x)
    gm = mge.autodiff.GradManager().attach([x])
    with gm:
        gm.backward(traced(x).sum())
    np.testing.assert_array_equal(x.grad.numpy(), np.full((2, 3), 2.0))
