"""Values computed of parameters alone reach whoever reads them, whatever is made of them first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.engine.workloads import f32

import treadle as mge
import treadle.functional as F
from treadle.base.errors import CompileError
from treadle.engine.compile import early
from treadle.engine.compile.link import Linker
from treadle.engine.compile.place import Home, Placement
from treadle.engine.options import Options
from treadle.engine.pipeline import Stages
from treadle.engine.plan import Interface
from treadle.graph.builder import trace_body
from treadle.graph.ir import Graph
from treadle.ops.conv import Conv
from treadle.ops.elementwise import Mul
from treadle.ops.movement import Reshape

Body = Callable[[Any, Any], Any]


def standardized(w: Any) -> Any:
    flat = w.reshape(w.shape[0], -1)
    flat = (flat - flat.mean(axis=1, keepdims=True)) / F.sqrt(F.var(flat, 1, keepdims=True) + 1e-5)
    return flat.reshape(w.shape)


def normed(w: Any) -> Any:
    flat = w.reshape(w.shape[0], -1)
    return (flat / F.norm(flat, axis=1, keepdims=True)).reshape(w.shape)


def rounded(w: Any) -> Any:
    return F.clip(F.round(w * 16.0), -8, 7) / 16.0


MADE: dict[str, Callable[[Any], Any]] = {
    "scaled": lambda w: w * 2.0,
    "standardized": standardized,
    "normed": normed,
    "rounded": rounded,
}
"""Weights that are computed of a parameter."""


def heads(x: Any, n: int = 2) -> Any:
    """(batch, rows, columns) as (batch, heads, rows, columns of a head)."""
    return x.reshape(x.shape[0], x.shape[1], n, -1).transpose(0, 2, 1, 3)


READERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Body]] = {
    "conv": ((2, 4, 6, 6), (8, 4, 3, 3), lambda x, w: F.conv2d(x, w, padding=1)),
    "group": ((2, 8, 6, 6), (4, 4, 2, 3, 3), lambda x, w: F.conv2d(x, w, padding=1, groups=4)),
    "depthwise": ((2, 8, 6, 6), (8, 1, 1, 3, 3), lambda x, w: F.conv2d(x, w, groups=8)),
    "transposed": ((2, 4, 5, 5), (4, 8, 3, 3), lambda x, w: F.conv_transpose2d(x, w, stride=2)),
    "heads": (
        (2, 6, 8),
        (10, 8),
        lambda x, w: F.matmul(
            heads(x),
            F.broadcast_to(heads(w.reshape(1, 10, 8)), (2, 2, 10, 4)).transpose(0, 1, 3, 2),
        ),
    ),
    "rows": ((3, 4), (6, 4), lambda x, w: F.matmul(x, w[1:4].T) + w[4:5, :3] - w.reshape(-1)[3:6]),
}
"""Shapes of input and parameter, and who reads what is made of the parameter."""


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, "float32") for shape in shapes]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("reader", READERS)
def test_computed_weights(made: str, reader: str) -> None:
    """At every level, in several calls, and after the parameter has changed in any way."""
    shape, form, body = READERS[reader]
    x, w = (mge.tensor(a) for a in arrays(shape, form))
    weight = mge.Parameter(w.numpy())

    def f(x: Any) -> Any:
        return body(x, MADE[made](weight))

    programs = [
        mge.jit.compile(lambda x: f(x), options=Options(level=n, check=True)) for n in (1, 2, 3)
    ]
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: None,
        lambda: weight.__setitem__(0, 1.5),
        lambda: weight.__imul__(1.25),
        lambda: weight._reset(mge.tensor(w.numpy() + 1.0)),
    ]
    for change in changes:
        change()
        for program in programs:
            np.testing.assert_allclose(program(x).numpy(), f(x).numpy(), rtol=2e-4, atol=2e-4)


def test_a_step_that_updates_what_is_kept_is_seen() -> None:
    """One program writes a parameter in place, another keeps what it computed of it."""
    x, w = (mge.tensor(a) for a in arrays(*READERS["group"][:2]))
    weight = mge.Parameter(w.numpy())
    infer = mge.jit.compile(lambda x: READERS["group"][2](x, weight * 2.0))

    @mge.jit.compile
    def step() -> None:
        weight[...] = weight * 0.5 + 1.0

    for _ in range(3):
        expected = READERS["group"][2](x, weight * 2.0).numpy()
        np.testing.assert_allclose(infer(x).numpy(), expected, rtol=2e-5, atol=2e-5)
        step()


# -- the checker -------------------------------------------------------------------------------

CONV = Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 4)


def _graph() -> Graph:
    """A view that is packed, and a value that is read as it is."""

    def body(x: Any, w: Any, v: Any) -> Any:
        y = CONV(x, Reshape((16, 2, 3, 3))(Mul()(w, w)))
        return Mul()(y, Reshape((1, 16, 1, 1))(Mul()(v, v)))

    return trace_body(body, [f32(2, 8, 14, 14), f32(16, 18), f32(16)], "g")


def _kept_in_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "keep", Placement.scratch)


def _packed_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = early._turns
    monkeypatch.setattr(early, "_turns", lambda *given: turns(*given)[::-1])


def _packed_in_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    places = Linker._places

    def moved(self: Linker, item: Any, *rest: Any) -> Any:
        found = dict(places(self, item, *rest))
        found["kept"] = [self.address(Home("arena", 0)) for _ in found["kept"]]
        return found

    monkeypatch.setattr(Linker, "_places", moved)


def _packed_forms_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "keep", lambda self, nbytes: Home("kept", 0))


def _a_view_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    where = Linker.where

    def shifted(self: Linker, value: Any) -> Any:
        at = where(self, value)
        kept = at.base == self.inputs + self.outputs + 1
        return type(at)(at.base, at.offset + 64 * kept)

    prepare = Linker.prepare

    def then(self: Linker, *given: Any) -> None:
        prepare(self, *given)
        monkeypatch.setattr(Linker, "where", shifted)

    monkeypatch.setattr(Linker, "prepare", then)


MUTATIONS = [
    _kept_in_scratch,
    _packed_before_it_is_made,
    _packed_in_the_arena,
    _packed_forms_at_one_place,
    _a_view_of_something_else,
]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_checker_notices(mutation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, interface = _graph(), Interface((False, True, True))
    # The scale is to be read as it is, not folded into the weight.
    options = Options(check=True, disabled=("fold_scales",), level=2)
    Stages(graph, interface, options).planned.plan
    mutation(monkeypatch)
    with pytest.raises(CompileError, match="memory plan"):
        Stages(graph, interface, options).planned.plan
