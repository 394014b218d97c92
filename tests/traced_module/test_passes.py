"""Passes over graphs, the patterns they match, and `optimize`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from tests.traced_module.nets import Inverted, images, same, settle, traced_net

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.traced_module as tm
from treadle.ops.unary import Sqrt
from treadle.traced_module import CallFunction, Constant, GetAttr, TracedModule
from treadle.traced_module import expr as expressions
from treadle.traced_module._passes import (
    PASSES,
    BackwardPass,
    ExprPattern,
    ForwardPass,
    Pass,
    PassContext,
    PatternMatcher,
    any_node,
    get_default_pass_context,
    get_registered_pass,
    is_const,
    is_op,
    is_var,
    register_pass,
)


class ConvBn(M.Module):
    def __init__(self, conv: Any, bn: Any, groups: int) -> None:
        super().__init__()
        self.conv, self.bn = conv(4, 8, 3, groups=groups), bn(8)
        self.conv2, self.bn2 = conv(8, 4, 1, bias=False), bn(4)

    def forward(self, x: Any) -> Any:
        return F.relu(self.bn2(self.conv2(F.relu(self.bn(self.conv(x))))))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bn", [M.BatchNorm2d, M.SyncBatchNorm])
@pytest.mark.parametrize("conv", [M.Conv2d, M.ConvTranspose2d])
def test_fuse_conv_bn(conv: Any, bn: Any, groups: int) -> None:
    net, x = ConvBn(conv, bn, groups), images(2, 4, 6, 6)
    settle(net, x)
    expected = net(x)
    traced = tm.trace_module(net, x)
    fused = tm.optimize(traced, "FuseConvBn")
    same(fused(x), expected)
    assert fused.graph.get_module_by_type(bn).as_list() == []
    assert not any("bn" in name for name, _ in fused.named_tensors())
    same(traced(x), expected)
    same(net(x), expected)
    net.train()
    traced = tm.trace_module(net, x)
    assert tm.optimize(traced).graph.get_module_by_type(bn).as_count() == 2


def test_fuse_conv_bn_of_functions() -> None:
    class Net(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = mge.Parameter(images(8, 4, 3, 3)), mge.Parameter(images(1, 8, 1, 1))
            self.bn, self.mean, self.var = (
                M.BatchNorm2d(8),
                images(1, 8, 1, 1),
                F.ones((1, 8, 1, 1)),
            )

        def forward(self, x: Any) -> Any:
            one = self.bn(F.conv2d(x, self.w, self.b))
            two = F.batch_norm(F.conv2d(x, self.w), self.mean, self.var, training=False)
            three = F.batch_norm(F.conv2d(x, self.w), x.mean((0, 2, 3)).sum() + self.mean, self.var)
            return one, two, three

    net, x = Net(), images(2, 4, 6, 6)
    net.eval()
    fused = tm.optimize(tm.trace_module(net, x))
    same(fused(x), net(x))
    assert fused.graph.get_function_by_type(F.batch_norm).as_count() == 1
    assert fused.graph.get_module_by_type(M.BatchNorm2d).as_count() == 0


def test_a_convolution_in_use_elsewhere_is_not_changed() -> None:
    class Net(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.other = M.Conv2d(4, 4, 1), M.BatchNorm2d(4), M.BatchNorm2d(4)

        def forward(self, x: Any) -> Any:
            return self.bn(self.conv(x)) + self.conv(x * 2), self.other(x)

    net, x = Net(), images(2, 4, 3, 3)
    settle(net, x)
    fused = tm.optimize(tm.trace_module(net, x))
    same(fused(x), net(x))
    assert fused.graph.get_module_by_type(M.BatchNorm2d).as_count() == 2


def test_fuse_in_sub_modules_and_flattened() -> None:
    net, x = traced_net()
    traced = tm.trace_module(net, x)
    for module in (traced, traced.flatten()):
        fused = tm.optimize(module, ["FuseConvBn"])
        same(fused(x), net(x))
        assert fused.graph.get_module_by_type(M.BatchNorm2d).as_count() == 0
    net, x = Inverted(), images(1, 4, 5, 5)
    settle(net, x)
    same(tm.optimize(tm.trace_module(net, x))(x), net(x))


class Scaled(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.conv2 = M.Conv2d(4, 8, 3), M.Conv2d(8, 4, 1, groups=2)
        self.pool = M.AvgPool2d(1)

    def forward(self, x: Any) -> Any:
        y = 2 * F.max_pool2d(F.relu(self.conv(x)) * 2.0, 2) / 4
        y = y * mge.tensor(np.arange(1, 9, dtype="float32").reshape(1, 8, 1, 1))
        z = (1.0 - self.conv2(y)) * 3 - 2
        z = self.pool(z).reshape(z.shape[0], -1) * 0.5
        return F.div(F.sub(F.add(1, z), 3.0), 2)


def products(module: TracedModule) -> int:
    return module.graph.get_method_by_type("__mul__").as_count()


def sums(module: TracedModule) -> int:
    return module.graph.get_method_by_type("__add__").as_count()


def test_passes_of_arithmetic_keep_results() -> None:
    net, x = Scaled(), images(2, 4, 8, 8)
    traced = tm.trace_module(net, x)
    expected = net(x)
    for names, left in (
        ("NormElemWise", (8, 4)),
        ("FuseAddMul", (4, 2)),
        ("BackwardFoldScale", (0, 4)),
        (["FuseAddMul", "BackwardFoldScale"], (0, 2)),
        (["BackwardFoldScale", "FuseAddMul"], (0, 2)),
    ):
        changed = tm.optimize(traced, names)
        same(changed(x), expected)
        assert (products(changed), sums(changed)) == left, names
        assert changed.graph.get_function_by_type(F.add).as_count() == 0
    same(traced(x), expected)


def test_negative_factors_stop_at_rectifiers() -> None:
    net = M.Sequential(M.Conv2d(2, 2, 1), M.ReLU())
    x = images(1, 2, 3, 3)
    whole = Chain(net, lambda y: y * -2.0)
    folded = tm.optimize(tm.trace_module(whole, x).flatten(), "BackwardFoldScale")
    assert products(folded) == 1
    same(folded(x), whole(x))
    whole = Chain(net, lambda y: y * 2.0)
    folded = tm.optimize(tm.trace_module(whole, x).flatten(), "BackwardFoldScale")
    assert products(folded) == 0
    same(folded(x), whole(x))


class Branches(M.Module):
    def __init__(self, conv: Any, bn: Any) -> None:
        super().__init__()
        self.conv, self.bn = conv(4, 4, 1, groups=2), bn(4)
        self.other = conv(4, 4, 1, bias=False)
        self.scale = mge.tensor([3, 4])
        self.channels = mge.tensor(np.arange(1, 5, dtype="float32").reshape(1, 4, 1, 1))

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn(self.conv(x))) * self.scale[0]
        z = self.other(x)
        y = (self.scale[1] + (y - z)) * self.channels
        y = (y + 3) + (y + 4)  # a value with two users, both scaled
        return F.reshape(F.relu(y) * self.scale[1], (-1,)) / 2


class OwnConv(M.Conv2d):
    """Not one of Treadle's: it is looked into."""


class OwnNorm(M.BatchNorm2d):
    """The same."""


@pytest.mark.parametrize("conv", [M.Conv2d, OwnConv])
@pytest.mark.parametrize("bn", [M.BatchNorm2d, OwnNorm])
def test_factors_go_into_all_convolutions_of_a_sum(conv: Any, bn: Any) -> None:
    net, x = Branches(conv, bn), images(2, 4, 3, 3)
    settle(net, x)
    folded = tm.optimize(tm.trace_module(net, x).flatten(), "BackwardFoldScale")
    same(folded(x), net(x))
    assert products(folded) == 0


def test_factors_stay_where_another_user_sees_the_value() -> None:
    class Twice(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = M.Conv2d(4, 4, 1)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            return (y + 1) * 2.0 + F.exp(y)

    net, x = Twice(), images(2, 4, 3, 3)
    folded = tm.optimize(tm.trace_module(net, x), "BackwardFoldScale")
    assert products(folded) == 1
    same(folded(x), net(x))


class Chain(M.Module):
    def __init__(self, net: M.Module, then: Any) -> None:
        super().__init__()
        self.net, self.then = net, then

    def forward(self, x: Any) -> Any:
        return self.then(self.net(x))


def test_integers_are_left_alone() -> None:
    x = mge.tensor(np.arange(6, dtype="int32"))
    module = Chain(M.Identity(), lambda y: ((y + 1) + 2) / 2)
    changed = tm.optimize(tm.trace_module(module, x), "FuseAddMul")
    same(changed(x), module(x))


def test_neutral_elements() -> None:
    x = images(2, 3)
    module = Chain(M.Identity(), lambda y: (y + 0.0) * 1 / 1 - 0 + mge.tensor([0.0]))
    changed = tm.optimize(tm.trace_module(module, x), "FuseAddMul")
    same(changed(x), module(x))
    assert (products(changed), sums(changed)) == (0, 1)


class Constants(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.k = mge.Parameter(images(3)), images(3)
        self.total = F.zeros((1,))

    def forward(self, x: Any) -> Any:
        self.total += 1
        scale = F.exp(self.w) + np.sqrt(self.k) * 2
        return (x * scale).reshape(x.shape[0] * 3), F.dropout(self.k, 0.5)


def test_constants() -> None:
    net, x = Constants(), images(2, 3)
    traced = tm.trace_module(net, x)
    fixed = tm.optimize(traced, "AttrToConstant")
    fetched = [e.name for e in fixed.graph.exprs() if isinstance(e, GetAttr)]
    assert fetched == ["total"]  # it is changed by each run
    same(fixed(x)[0], net(x)[0])
    folded = tm.optimize(traced, "FlodConstant")
    same(folded(x)[0], net(x)[0])
    assert folded.graph.get_function_by_type(F.exp).as_count() == 0
    assert folded.graph.get_function_by_type(F.dropout).as_count() == 1
    assert [n for n, _ in folded.named_tensors()] == ["total"]


def test_fix_input_shape() -> None:
    net, x = Constants(), images(2, 3)
    traced = tm.trace_module(net, x)
    assert traced(images(4, 3))[0].shape == (12,)
    fixed = tm.optimize(traced, "FixInputShape")
    same(fixed(x)[0], net(x)[0])
    reshape = fixed.graph.get_method_by_type("reshape").as_unique()
    assert reshape.args[1:] == (6,)
    assert fixed.graph.exprs().call_function(None).as_count() == 2  # exp, dropout


def test_optimize_refuses() -> None:
    traced = tm.trace_module(M.Sequential(M.ReLU()), images(2))
    with pytest.raises(ValueError, match="no pass 'Nope'; there are AttrToConstant, Back"):
        tm.optimize(traced, ["FuseConvBn", "Nope"])
    with pytest.raises(TypeError, match="takes a TracedModule"):
        tm.optimize(M.ReLU())  # type: ignore[arg-type]


def test_users_add_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.traced_module._passes.pass_base.PASSES", dict(PASSES))

    class ReluToGelu(Pass):
        name: ClassVar[str] = "ReluToGelu"

        def run(self, graph: Any) -> bool:
            found = graph.get_function_by_type(F.relu, recursive=False).as_list()
            for expr in found:
                expr.func = F.gelu
            return bool(found)

    register_pass(ReluToGelu)
    traced = tm.trace_module(Chain(M.Identity(), F.relu), images(2))
    changed = tm.optimize(traced, "ReluToGelu")
    same(changed(images(2)), F.gelu(images(2)))


def seen_by(base: Any) -> list[str]:
    """Names of what a pass is offered, in order."""
    seen: list[str] = []

    class Look(base):  # type: ignore[misc]
        name: ClassVar[str] = "Look"

        def before_visit_graph(self, graph: Any) -> None:
            seen.append("graph")

        def run_transform(self, expr: Any) -> Any:
            seen.append(expr.outputs[0].name)
            return expr

    traced = tm.trace_module(Chain(F.exp, lambda x: F.relu(F.neg(x))), images(2))
    assert Look()(traced) is traced
    assert repr(Look()) == "Look"
    return seen


def test_passes_go_with_data_or_against_it() -> None:
    forward, backward = seen_by(ForwardPass), seen_by(BackwardPass)
    assert forward[0] == backward[0] == "graph"
    assert forward[1:] == backward[:0:-1] and len(forward) > 3
    assert [n.split("_")[0] for n in forward if n.split("_")[0] in ("exp", "neg", "relu")] == [
        "exp",
        "neg",
        "relu",
    ]


@pytest.mark.parametrize("base", [ForwardPass, BackwardPass])
def test_a_pass_in_megengines_form(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PASSES, "TwiceRelu", Pass)  # Taken out again afterwards.

    @register_pass("TwiceRelu")
    class TwiceRelu(base):  # type: ignore[misc]
        """relu(relu(x)) is relu(x)."""

        name: ClassVar[str] = "TwiceRelu"
        run_once = False

        def __init__(self) -> None:
            self.inner = is_op(F.relu)(is_var())
            self.pattern = is_op(F.relu)(self.inner)

        def run_transform(self, expr: Any) -> Any:
            matcher = PatternMatcher()
            if not matcher.match(self.pattern, expr):
                return expr
            kept = matcher.matched_exprs[self.inner]
            expr.top_graph.replace_node({expr.outputs[0]: kept.outputs[0]})
            expr.top_graph.compile()
            return kept

    traced = tm.trace_module(
        Chain(M.Identity(), lambda x: F.relu(F.relu(F.relu(x)))), images(2) - 0.5
    )
    count = traced.flatten().graph.get_function_by_type(F.relu).as_count()
    assert count == 3
    changed = tm.optimize(traced, "TwiceRelu")
    assert changed.graph.get_function_by_type(F.relu).as_count() == 1
    assert traced.graph.get_function_by_type(F.relu).as_count() == 3
    same(changed(images(2) - 0.5), F.relu(images(2) - 0.5))
    off = PassContext("TwiceRelu", {"level": 2})
    assert not off.pass_enabled(TwiceRelu()) and off.pass_enabled("FuseConvBn")
    assert off.pass_config == {"level": 2}
    TwiceRelu()(traced, off)
    assert traced.graph.get_function_by_type(F.relu).as_count() == 3
    off.add_diabled_pass(["FuseConvBn"])
    assert not off.pass_enabled("FuseConvBn")
    assert get_default_pass_context().pass_enabled("TwiceRelu")
    TwiceRelu()(traced)
    assert traced.graph.get_function_by_type(F.relu).as_count() == 1
    assert get_registered_pass("TwiceRelu") is TwiceRelu
    with pytest.raises(AssertionError, match="there is no pass 'Nobody'"):
        get_registered_pass("Nobody")


def test_questions_about_expressions() -> None:
    def function(x: Any) -> Any:
        return F.relu(x.reshape(2, -1)) + mge.tensor([1.0])

    traced = tm.trace_module(Chain(M.Conv2d(2, 2, 1), function), images(1, 2, 3, 3))
    every = list(traced.graph.exprs(recursive=False))
    e = expressions

    def which(test: Any, *more: Any) -> list[str]:
        return [x.outputs[0].name for x in every if test(x, *more)]

    assert len(which(e.is_call_module)) == 1
    assert which(e.is_call_module, M.Conv2d) == which(e.is_call_module)
    assert which(e.is_call_module, M.Linear) == []
    assert len(which(e.is_call_function)) == 1
    assert which(e.is_call_function, F.relu) == which(e.is_call_function, [F.exp, F.relu])
    assert which(e.is_call_function, F.exp) == []
    assert len(which(e.is_call_tensor_method)) == 2
    assert len(which(e.is_call_tensor_method, "reshape")) == 1
    assert len(which(e.is_call_tensor_method, ("reshape", "__add__"))) == 2
    assert len(which(e.is_constant)) == 1
    assert len(which(e.is_getattr)) == 1
    assert len(which(e.is_input)) == 2
    assert which(e.is_apply_def) == []
    assert not e.is_call_module(None) and not e.is_input(3)
    applied = tm.trace_module(Chain(M.Identity(), np.sqrt), images(2))
    found = [x for x in applied.graph.exprs() if e.is_apply_def(x, Sqrt)]
    assert [x for x in found if e.is_apply_def(x)] == found
    args, kwargs = every[-1].unflatten_args([1, 2])
    assert (args, kwargs) == ((1, 2), {})


def test_expressions_that_stay_though_nothing_takes_them() -> None:
    traced = tm.trace_module(Chain(M.Identity(), F.relu), images(2))
    graph = traced.graph
    with graph.insert_exprs():
        F.exp(graph.inputs[1])
    [extra] = graph.get_function_by_type(F.exp).as_list()
    extra.disable_remove()
    graph.compile()
    assert extra in graph._exprs
    extra.enable_remove()
    graph.compile()
    assert extra not in graph._exprs


def test_parts_of_names() -> None:
    assert expressions.get_suffix_name("net", "net.conv.weight") == "conv.weight"
    assert expressions.get_suffix_name("net", "net") == ""
    assert expressions.get_suffix_name("net", "network.conv") is None
    assert expressions.rstrip("a.b_out_out", "_out") == "a.b"
    assert expressions.rstrip("about", "_out") == "about"
    assert expressions.rstrip("a", "") == "a"


# -- patterns --------------------------------------------------------------------------------


def match(pattern: ExprPattern, then: Any) -> PatternMatcher | None:
    """A matcher of the last expression of what `then` does behind a convolution."""
    traced = tm.trace_module(Chain(M.Conv2d(2, 2, 1), then), images(1, 2, 3, 3))
    matcher = PatternMatcher()
    return matcher if matcher.match(pattern, traced.graph.outputs[0].expr) else None


def test_patterns() -> None:
    x, c = is_var(), is_const()
    conv = is_op(M.Conv2d)(any_node())
    found = match(is_op(F.relu)(conv), F.relu)
    assert found is not None
    assert found[conv].name == "net_out"
    assert found.expr(conv).inputs[0].module_type is M.Conv2d
    assert match(is_op(F.relu)(conv), F.sigmoid) is None
    assert match(is_op(F.relu)(is_op(M.Linear)(x)), F.relu) is None
    found = match(x * c + 1.0, lambda y: y * mge.tensor([2.0]) + 1.0)
    assert found is not None
    assert isinstance(found[c].expr, Constant)
    assert match(x * c + 2.0, lambda y: y * 2.0 + 1.0) is None
    assert match((x - c) / 4, lambda y: (y - 3.0) / 4) is not None
    either = is_op(F.relu) | is_op(F.sigmoid)
    assert match(either(conv), F.sigmoid) is not None
    assert match(either(conv), F.tanh) is None
    assert match(is_op(Sqrt)(x), np.sqrt) is not None
    assert match(is_op("sum")(x, (1, 2)), lambda y: y.sum((1, 2))) is not None
    assert match(is_op(F.add)(x, x), lambda y: F.add(y, y)) is not None
    assert match(is_op(F.add)(x, x), lambda y: F.add(y, y * 2)) is None
    with pytest.raises(TypeError, match="is_op takes"):
        is_op(3)


def test_patterns_look_at_users() -> None:
    inner = is_op(F.relu)(is_var())
    assert match(is_op(F.sigmoid)(inner), lambda y: F.sigmoid(F.relu(y))) is not None

    def twice(y: Any) -> Any:
        z = F.relu(y)
        return F.concat([z, F.sigmoid(z)])

    traced = tm.trace_module(Chain(M.Identity(), twice), images(2))
    sigmoid = traced.graph.get_function_by_type(F.sigmoid).as_unique()
    assert isinstance(sigmoid, CallFunction)
    assert not PatternMatcher().match(is_op(F.sigmoid)(inner), sigmoid)
    inner.check_users(False)
    assert PatternMatcher().match(is_op(F.sigmoid)(inner), sigmoid)


def test_patterns_ask_for_attributes_and_arguments() -> None:
    layer = is_op(M.Conv2d).has_attr(groups=1, in_channels=2)  # type: ignore[attr-defined]
    assert match(is_op(F.relu)(layer(any_node())), F.relu) is not None
    other = is_op(M.Conv2d).has_attr(groups=2)  # type: ignore[attr-defined]
    assert match(is_op(F.relu)(other(any_node())), F.relu) is None
    for axis, fits in ((1, True), (2, False)):
        pattern = is_op(F.softmax).has_params(axis=axis)  # type: ignore[attr-defined]
        assert (match(pattern(is_var()), lambda y: F.softmax(y, 1)) is not None) is fits
    assert match(2.0 - is_var(), lambda y: 2.0 - y) is not None
    assert match(2.0 / is_var(), lambda y: 2.0 - y) is None
