"""Results of compiled functions that are views of arguments, or of one another."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from treadle.interop.torch import backend, left_to_torch  # noqa: E402

CASES: dict[str, Callable[..., Any]] = {
    "a row by the size": lambda x: x[x.shape[0] // 2],
    "rows from the middle": lambda x: x[x.shape[0] // 2 :],
    "columns": lambda x: (x[:, 1], x[:, ::2], x.t()[1:]),
    "halves": lambda x: x.chunk(2),
    "all columns": lambda x: x.unbind(1),
    "the whole": lambda x: (x.view(-1), x.t()),
    "beside a result": lambda x: (x[x.shape[0] // 2 :], x + 1),
    "of a result": lambda x: (x * 2)[x.shape[0] // 2 :],
    "of a result that is one": lambda x: (lambda y: (y[x.shape[0] // 2 :], y[1:2], y))(x * 2),
    "of one another": lambda x: (lambda y: (y.view(-1), y.t(), y[1:], x + 1))(x * 2),
    "of what is no result": lambda x: (lambda y: (y.t(), y[1:].unbind(0)[0]))(x * 3),
    "written": lambda x: (lambda y: (y, y[0], y[0].add_(1)))(x * 2),
    "repeated": lambda x: x[1:2].expand(3, -1),
}


def _partners(tensors: list[Any]) -> list[int]:
    """For each tensor the first one that lies in the same memory."""
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    return [memory.index(m) for m in memory]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_views_are_pytorchs(case: str, with_gradient: bool, dynamic: bool) -> None:
    torch._dynamo.reset()
    before = left_to_torch()
    function = CASES[case]
    run = torch.compile(function, backend=backend, dynamic=dynamic)
    for rows in (4, 6):
        x = torch.arange(4.0 * rows).reshape(rows, 4).requires_grad_(with_gradient)
        made = [f(x) for f in (run, function)]
        ours, theirs = (list(m) if isinstance(m, (tuple, list)) else [m] for m in made)
        torch.testing.assert_close(ours, theirs, check_stride=True, rtol=0, atol=0)
        for mine, other in zip(ours, theirs, strict=True):
            shares = [t.untyped_storage().data_ptr() == x.data_ptr() for t in (mine, other)]
            assert shares[0] == shares[1]
        assert _partners(ours) == _partners(theirs)
        if with_gradient:
            grads = [torch.autograd.grad(sum((t * t).sum() for t in m), x) for m in (ours, theirs)]
            torch.testing.assert_close(*grads)
    assert left_to_torch() == before  # Views cost nothing, and are nothing that is left.
