"""Einstein sums against NumPy's."""

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.autodiff import GradManager

RNG = np.random.default_rng(3)
EXTENTS = {"i": 2, "j": 3, "k": 4, "b": 5, "h": 2, "q": 3, "d": 4}


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,jk",
        "bij,bjk->bik",
        "bhqd,bhkd->bhqk",
        "ij->ji",
        "ij->",
        "ij->i",
        "ii->i",
        "ii",
        "i,j->ij",
        "i,i->",
        "ij,ij->ij",
        "ij,jk,kb->ib",
        "ij,kj,k->i",
        "...ij,...jk->...ik",
        "...i->...",
        "b...,b...->...",
        "jki,i->kj",
        "i,->i",
        " ij , jk -> k i ",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_equations(equation: str, dtype: str) -> None:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    arrays = []
    for term in terms:
        shape = [2, 3] * ("..." in term) + [EXTENTS[c] for c in term.replace("...", "")]
        if term.startswith("b..."):
            shape = [EXTENTS["b"], 2, 3]
        arrays.append((RNG.standard_normal(shape) * 4).astype(dtype))
    found = F.einsum(equation, *(mge.tensor(a) for a in arrays))
    expected = np.einsum(equation, *arrays)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found.numpy(), expected, 1e-4, 1e-5)


def test_dots_and_size_one_axes_broadcast() -> None:
    a, b = RNG.standard_normal((2, 1, 3, 4)), RNG.standard_normal((5, 4, 2))
    found = F.einsum("...ij,...jk->...ik", mge.tensor(a), mge.tensor(b))
    np.testing.assert_allclose(found.numpy(), a @ b, 1e-5, 1e-6)


def test_gradient() -> None:
    a, b = mge.tensor(RNG.standard_normal((2, 3))), mge.tensor(RNG.standard_normal((3, 4)))
    manager = GradManager().attach([a, b])
    with manager:
        manager.backward(F.einsum("ij,jk->", a, b))
    np.testing.assert_allclose(a.grad.numpy(), np.broadcast_to(b.numpy().sum(1), (2, 3)), 1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "2 operands, got 1"),
        ("ij->ij", [(2,)], "does not fit 1 axes"),
        ("i->i", [(2, 3)], "does not fit 2 axes"),
        ("i->ij", [(2,)], "invents"),
        ("i->ii", [(2,)], "repeats"),
        ("i1->i", [(2, 3)], "cannot read"),
        ("ij,jk->ik", [(2, 3), (4, 2)], "extents 3 and 4"),
        ("ii->i", [(2, 3)], "differ in extent"),
    ],
)
def test_errors(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        F.einsum(equation, *(F.zeros(s) for s in shapes))
