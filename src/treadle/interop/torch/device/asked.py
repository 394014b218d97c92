"""Operators that PyTorch asks only of devices like ours, in terms of other ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from treadle.interop.torch.device import calls

aten = torch.ops.aten
Tensor: TypeAlias = torch.Tensor
Kernel = Callable[..., Any]


def _convolution_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    bias = [weight.shape[1] * groups if transposed else weight.shape[0]]
    geometry = (stride, padding, dilation, transposed, output_padding, groups, mask)
    # Asked by its name, it would ask for this one.
    return calls.run(aten.convolution_backward.default, dy, x, weight, bias, *geometry)


def _lstm_cell(
    gx: Tensor, gh: Tensor, cx: Tensor, bx: Tensor | None = None, bh: Tensor | None = None
) -> Any:
    gates = gx + gh
    if bx is not None and bh is not None:
        gates = gates + bx + bh
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def _lstm_cell_backward(
    dhy: Tensor | None, dcy: Tensor | None, cx: Tensor, cy: Tensor, kept: Tensor, has_bias: bool
) -> Any:
    i, f, g, o = kept.chunk(4, 1)
    tanh = cy.tanh()
    dh = torch.zeros_like(cy) if dhy is None else dhy
    dc = dh * o * (1 - tanh * tanh)
    if dcy is not None:
        dc = dc + dcy
    parts = (
        dc * g * i * (1 - i),
        dc * cx * f * (1 - f),
        dc * i * (1 - g * g),
        dh * tanh * o * (1 - o),
    )
    gates = torch.cat(parts, 1)
    return gates, dc * f, gates.sum(0) if has_bias else None


def _gru_cell(
    gx: Tensor, gh: Tensor, hx: Tensor, bx: Tensor | None = None, bh: Tensor | None = None
) -> Any:
    if bx is not None and bh is not None:
        gx, gh = gx + bx, gh + bh
    (xr, xz, xn), (hr, hz, hn) = gx.chunk(3, 1), gh.chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hn, hx), 1)


def _gru_cell_backward(dhy: Tensor, kept: Tensor, has_bias: bool) -> Any:
    r, z, n, hn, hx = kept.chunk(5, 1)
    dn = dhy * (1 - z) * (1 - n * n)
    dz = dhy * (hx - n) * z * (1 - z)
    dr = dn * hn * r * (1 - r)
    gx, gh = torch.cat((dr, dz, dn), 1), torch.cat((dr, dz, dn * r), 1)
    bias = (gx.sum(0), gh.sum(0)) if has_bias else (None, None)
    return gx, gh, dhy * z, *bias


_WRITTEN: dict[str, Any] = {
    "convolution_overrideable": partial(calls.run, aten.convolution.default),
    "convolution_backward_overrideable": _convolution_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}


def _native_dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """Return x after dropout, and the mask, with the same numbers as PyTorch's CPU."""
    if train is False or not p:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = torch.empty_like(x).bernoulli_(1 - p)
    mask = kept.to(torch.bool)
    return x * (kept.div_(1 - p) if p < 1 else kept), mask


KERNELS: dict[str, Kernel] = {
    **_WRITTEN,
    "native_dropout": _native_dropout,
}
"""By operator."""
