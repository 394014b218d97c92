"""Names around traced modules that programs import of MegEngine, converters above all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import UnsupportedOp
from treadle.base.version import VERSION
from treadle.interop.megengine import builtin, install, tracer, uninstall
from treadle.traced_module import CallMethod, trace_module


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = M.Linear(4, 4)

    def forward(self, x: Any, pair: Any = None) -> Any:
        assert tracer.active_module_tracer() is not None
        return F.relu(self.linear(x)) + x


@pytest.fixture
def alias() -> Iterator[None]:
    install()
    yield
    uninstall()


@pytest.fixture
def graph() -> Any:
    return trace_module(Net(), mge.Tensor([[1.0] * 4])).graph


def test_queries_by_their_classes(graph: Any) -> None:
    nodes, exprs = graph.nodes(), graph.exprs()
    assert [n.name for n in tracer.NodeFilterType(nodes, M.Linear)] == ["linear"]
    (found,) = tracer.NodeFilterName(nodes, "*LINEAR_out")
    assert found.name == "linear_out"
    assert tracer.NodeFilterNodeId(nodes, [found._id]).as_unique() is found
    (call,) = tracer.ExprFilterCallFunction(exprs, F.relu)
    assert call.func is F.relu
    assert tracer.ExprFilterExprId(exprs, call._id).as_unique() is call
    assert tracer.ExprFilterCallMethod(exprs, "__add__").as_count() == 1
    assert tracer.ExprFilterCallMethod(exprs).as_count() == 2


def test_the_tracer_that_runs() -> None:
    assert tracer.active_module_tracer() is None
    scopes = []

    class Inner(M.Module):
        def forward(self, x: Any) -> Any:
            active = tracer.active_module_tracer()
            assert active is not None
            scopes.append((active.current_scope().qualname, active.top_scope().qualname))
            with pytest.raises(UnsupportedOp):
                tracer.set_active_module_tracer(None)
            return x + 1

    class Outer(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    trace_module(Outer(), mge.Tensor([1.0]))
    assert scopes == [("Outer.inner", "Outer")]
    tracer.set_active_module_tracer(None)
    assert tracer.module_tracer.is_builtin(M.Linear(2, 2))
    assert not tracer.module_tracer.is_builtin(Inner())


def test_methods_that_are_kept_whole(graph: Any) -> None:
    called = {e.method for e in graph.exprs() if isinstance(e, CallMethod)}
    assert called - {"__call__"} <= set(tracer.BUILTIN_ARRAY_METHOD)
    assert {"__getitem__", "reshape", "_broadcast"} <= set(tracer.get_tensor_wrapable_method())
    assert all(hasattr(mge.Tensor, name) for name in tracer.get_tensor_wrapable_method())


def test_trees_of_arguments(graph: Any) -> None:
    (call,) = graph.get_function_by_type(F.relu).as_list()
    args, kwargs = call.arg_def.children_defs
    assert (args.num_leaves, kwargs.aux_data) == (1, ())
    assert isinstance(args.children_defs[0], tracer.LeafDef)
    assert not isinstance(args, tracer.LeafDef)


def test_ops_by_name() -> None:
    assert str(builtin.Elemwise("ADD")) == "ADD"
    assert str(builtin.MEMBERS["GetVarShape"]()) == "GetVarShape"


@pytest.mark.parametrize("func", [F.softmax, F.flatten, F.concat, F.repeat, F.squeeze])
def test_functions_say_what_they_take(func: Any) -> None:
    found = inspect.getfullargspec(func)
    assert found.args[:1] == list(inspect.signature(func).parameters)[:1]
    assert found.varargs is None


@pytest.mark.usefixtures("alias")
def test_names_where_megengine_has_them() -> None:
    import megengine  # type: ignore[import-not-found]
    from megengine.traced_module.module_tracer import (  # type: ignore[import-not-found]
        BUILTIN_ARRAY_METHOD,
    )
    from megengine.traced_module.pytree import (  # type: ignore[import-not-found]
        SUPPORTED_TYPE,
        LeafDef,
    )
    from megengine.traced_module.traced_module import (  # type: ignore[import-not-found]
        ExprFilterCallFunction,
    )

    assert "__add__" in BUILTIN_ARRAY_METHOD
    assert SUPPORTED_TYPE[tuple].flatten((1, 2)) == ([1, 2], None)
    assert LeafDef is tracer.LeafDef
    assert ExprFilterCallFunction is tracer.ExprFilterCallFunction
    assert megengine.module.adaptive_pooling.AdaptiveAvgPool2d is M.AdaptiveAvgPool2d


def test_programs_see_a_version_of_megengine() -> None:
    """They choose names by it: `0.2.0` would be one of before 1.0."""
    install()
    try:
        import megengine

        assert megengine.__version__ == "1.13.4"
    finally:
        uninstall()
    assert mge.__version__ == VERSION


def test_modules_that_stand_elsewhere_are_no_layers(alias: None) -> None:
    from treadle.quantization.quantize import _get_quantable_module_names

    assert hasattr(M.qat, "concat")
    assert {type(getattr(M.qat, name)) for name in _get_quantable_module_names()} == {
        type(M.Linear)
    }
