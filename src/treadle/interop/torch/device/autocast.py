"""Mixed precision: which operators `torch.autocast("treadle")` casts, by Treadle's own lists.

Products, convolutions and attention take their tensors in few bits; exponentials, logarithms,
divisions, powers, norms over one sample and losses in float32. Where element types have to be
equal, the widest of them is taken. See `treadle.amp.autocast`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from treadle.interop.torch.device import private
from treadle.interop.torch.device.places import NAME

LOW = (
    *("addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot"),
    *("linalg_vecdot", "linear", "matmul", "mm", "mv", "convolution", "_convolution", "conv_tbc"),
    *(f"conv{n}d" for n in (1, 2, 3)),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
    *("conv1d.padding", "conv2d.padding", "conv3d.padding"),
    *("gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell", "scaled_dot_product_attention"),
)
"""Operators in few bits."""
HIGH = (
    *("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "logsumexp", "reciprocal", "rsqrt"),
    *("div.Tensor", "div.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
    *("softmax.int", "log_softmax.int", "softmin", "layer_norm", "group_norm", "rms_norm"),
    *("instance_norm", "norm.Scalar", "norm.ScalarOpt_dim", "linalg_vector_norm", "cumsum"),
    *("cumprod", "prod", "cdist", "dist", "pdist", "renorm", "cosh", "sinh", "tan", "erfinv"),
    *("cosine_similarity", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("cosine_embedding_loss", "cross_entropy_loss", "hinge_embedding_loss", "huber_loss"),
    *("kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "multi_margin_loss"),
    *("multilabel_margin_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "poisson_nll_loss"),
    *("smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss", "ctc_loss.Tensor"),
)
"""Operators in float32."""
WIDEST = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put"),
    *("scatter_add", "tensordot", "vdot", "lerp.Tensor", "lerp.Scalar"),
)
"""Operators whose tensors have one element type."""

Wanted = Callable[[Any], torch.dtype]


def kernels() -> Iterator[tuple[str, Any]]:
    """Kernels of the key that stands in front while a block of mixed precision is open."""
    for names, wanted in ((LOW, _low), (HIGH, _high), (WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if op is not None:
                yield name, _casting(op, wanted)


def _casting(op: Any, wanted: Wanted) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with private.outside(private.AUTOCAST_KEY):
            dtype = wanted((args, kwargs))
            given = [_cast(a, dtype) for a in args]
            return op(*given, **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _low(_: Any) -> torch.dtype:
    return torch.get_autocast_dtype(NAME)


def _high(_: Any) -> torch.dtype:
    return torch.float32


def _widest(given: Any) -> torch.dtype:
    found = torch.get_autocast_dtype(NAME)
    for value in _tensors(given):
        if _is_cast(value):
            found = torch.promote_types(found, value.dtype)
    return found


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, (list, tuple)):
        for value in given:
            yield from _tensors(value)
    elif isinstance(given, dict):
        yield from _tensors(list(given.values()))


def _is_cast(value: torch.Tensor) -> bool:
    """Return whether a tensor takes part: floats of ours, but for those of 64 bits."""
    is_ours = value.device.type == NAME and value.dtype != torch.float64
    return bool(is_ours and value.is_floating_point())


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if _is_cast(value) else value
    if isinstance(value, (list, tuple)):
        return type(value)([_cast(v, dtype) for v in value])
    return value
