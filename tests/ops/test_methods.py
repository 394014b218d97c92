"""Shapes given to array methods: what counts as an extent."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle
from treadle.base.symbol import symbol
from treadle.graph.printer import to_text
from treadle.ops import indexing, methods
from treadle.ops.methods import as_shape
from treadle.tensor import Tensor


def test_extents_in_every_spelling() -> None:
    n = symbol("n")
    one = treadle.tensor([2, 3])
    for given in ((2, 3), ([2, 3],), (np.array([2, 3]),), (np.int64(2), np.uint8(3)), (one,)):
        assert as_shape(given) == (2, 3) and all(type(d) is int for d in as_shape(given))
    assert as_shape((n, 2)) == (n, 2) and as_shape(((),)) == ()


@pytest.mark.parametrize(
    "given", [(2.5,), (2.0,), ([1, 2.0],), (np.array([4.0]),), ("4",), (None,)]
)
def test_what_is_no_extent(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        as_shape(given)


@pytest.mark.parametrize(
    ("kept", "call"),
    [
        (methods._reshaping, lambda x: x.reshape(6)),
        (methods._reshaping, lambda x: x.reshape(3, -1)),
        (methods._reshaping, lambda x: x.reshape((3, 2))),
        (methods._reduction, lambda x: x.sum()),
        (methods._reduction, lambda x: x.max(1, keepdims=True)),
        (indexing._cuts, lambda x: x[1]),
        (indexing._cuts, lambda x: x[:, None, ::2]),
    ],
)
def test_ops_of_repeated_calls_are_kept(kept: Any, call: Callable[[Tensor], Tensor]) -> None:
    """For captures, which make the same ops again and again; eager calls find whole launches."""
    x = treadle.tensor([[1, 2, 3], [4, 5, 6]])
    first = to_text(treadle.jit.compile(call).lower(x).captured)
    before = kept.cache_info().hits
    assert to_text(treadle.jit.compile(call).lower(x).captured) == first
    assert kept.cache_info().hits > before


def test_a_wrong_argument_is_reported_of_a_tensor_method() -> None:
    x = treadle.tensor([[1.0, 2.0]])
    with pytest.raises(TypeError, match=r"^Tensor\.sum\(\) got an unexpected .* 'dims'"):
        x.sum(dims=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Tensor\.reshape\(\) got an unexpected"):
        x.reshape(2, order=1)  # type: ignore[call-arg]
