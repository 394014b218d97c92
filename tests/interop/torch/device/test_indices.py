"""Indices that PyTorch refuses on its CPU are refused on devices, and those that it takes taken."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch_device, pytest.mark.filterwarnings("ignore")]
F = torch.nn.functional


def _like(x: Any, values: Any) -> Any:
    return torch.tensor(values, device=x.device)


def _rows(x: Any) -> Any:
    return torch.arange(8.0).reshape(2, 4).to(x.device)


def _reduced(how: str) -> Callable[..., Any]:
    return lambda x, i: torch.scatter_reduce(x, 0, i[:, None], _rows(x), how)


def _reduced_lines(how: str) -> Callable[..., Any]:
    return lambda x, i: torch.index_reduce(x, 0, i, _rows(x), how)


_CALLS = {
    "embedding": lambda x, i: F.embedding(i, x),
    "index_select": lambda x, i: torch.index_select(x, 1, i),
    "gather": lambda x, i: torch.gather(x, 0, i[:, None]),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i[:, None], 0),
    "scatter, a number": lambda x, i: torch.scatter(x, 0, i[:, None], 1.0),
    "scatter": lambda x, i: torch.scatter(x, 0, i[:, None], _rows(x)),
    "scatter, products": lambda x, i: torch.scatter(x, 0, i[:, None], _rows(x), reduce="multiply"),
    "scatter_add": lambda x, i: torch.scatter_add(x, 0, i[:, None], _rows(x)),
    **{f"scatter_reduce, {how}": _reduced(how) for how in ("sum", "prod", "mean", "amax")},
    **{f"index_reduce, {how}": _reduced_lines(how) for how in ("prod", "mean", "amin")},
    "index_add": lambda x, i: torch.index_add(x, 0, i, _rows(x), alpha=2),
    "index_add_": lambda x, i: x.clone().index_add_(0, i, _rows(x)),
    "index_add, no axes": lambda x, i: torch.index_add(x.sum(), 0, i[1], x.sum()),
    "index_copy": lambda x, i: torch.index_copy(x, 0, i, _rows(x)),
    "index_copy_": lambda x, i: x.clone().index_copy_(0, i, _rows(x)),
    "index_fill": lambda x, i: torch.index_fill(x, 1, i, 1.0),
    "index_fill, a tensor": lambda x, i: torch.index_fill(x, 0, i, x.sum()),
    "index_fill_": lambda x, i: x.clone().index_fill_(0, i, 2.0),
    "put": lambda x, i: torch.put(x, i, _like(x, [1.0, 2.0]), accumulate=True),
    "take": lambda x, i: torch.take(x, i),
    "x[i]": lambda x, i: x[:, i],
    "x[i, i]": lambda x, i: x[i, i],
    "index_put": lambda x, i: torch.index_put(x, (i,), x.sum()),
    "embedding_bag": lambda x, i: F.embedding_bag(i, x, _like(x, [0]), mode="max"),
    "embedding_bag, bags": lambda x, i: F.embedding_bag(_like(x, [0, 1]), x, i),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:2], i, label_smoothing=0.1),
    "nll_loss, planes": lambda x, i: F.nll_loss(x[:2].reshape(1, 4, 2, 1), i.reshape(1, 2, 1)),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x[:2], i),
    "multilabel_margin_loss": lambda x, i: F.multilabel_margin_loss(x[:2, 1:3], i.repeat(2, 1)),
    "one_hot": lambda x, i: F.one_hot(i, 3) + x.sum(),
    "repeat_interleave": lambda x, i: torch.repeat_interleave(x[:2], i, dim=0),
    "max_unpool1d": lambda x, i: F.max_unpool1d(x[:1, :2], i[None], 2, 2),
    "max_unpool2d": lambda x, i: F.max_unpool2d(x[:1, :2, None], i[None, :, None], 2, 2),
    "max_unpool3d": lambda x, i: F.max_unpool3d(x[None, :1, :2, None], i[None, None, :, None], 2),
    "searchsorted": lambda x, i: torch.searchsorted(_like(x, [0.0, 1.0]), x, sorter=i),
    "segment_reduce": lambda x, i: torch.segment_reduce(x, "sum", lengths=i, axis=0),
}
_INDICES = (-100, -13, -12, -4, -1, 1, 3, 4, 12, 99)
"""Beside 0, into shape (3, 4)."""


def _told(function: Callable[..., Any], x: Any, index: int) -> list[Any]:
    """The result and the gradient; nothing of what is refused."""
    x = x.clone().requires_grad_()
    try:
        y = function(x, torch.tensor([0, index]).to(x.device))
        if not y.requires_grad:
            return [y.cpu()]
        y.sum().backward()
    except (RuntimeError, IndexError):
        return []
    return [y.detach().cpu(), x.grad.cpu()]


@pytest.mark.parametrize("name", _CALLS)
def test_indices_are_refused_as_on_the_cpu(devices: dict[str, str], name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    expected = {i: _told(_CALLS[name], x, i) for i in _INDICES}
    found = {i: _told(_CALLS[name], x.to(devices["cpu0"]), i) for i in _INDICES}
    assert [i for i, v in found.items() if v] == [i for i, v in expected.items() if v]
    for index in _INDICES:
        torch.testing.assert_close(found[index], expected[index])
