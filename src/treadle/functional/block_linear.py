"""Linear maps whose weights are quantized blocks."""

from __future__ import annotations

from treadle.functional.arguments import as_tensor
from treadle.ops.block_matmul import BlockExperts, BlockMatmul
from treadle.tensor import Tensor

__all__ = ["block_experts", "block_linear"]


def block_linear(
    x: Tensor,
    panels: Tensor,
    format: str,
    rows: int,
    bias: Tensor | None = None,
    *,
    activations: str = "int16",
) -> Tensor:
    """x W^T + bias, with W [rows, k] in blocks of 2 to 8 bits per weight.

    Activations are rounded to 16 bits, 32 neighbors with one scale, and multiplied with the levels
    of W as integers, unless `activations` says otherwise. W is read at the size it has in files, so
    products of few rows take the time that reading takes. The gradient of x is that of a product
    with the values of W; with "bfloat16" both are rounded to it.

    Args:
        x: (..., k), floats of 16 or 32 bits; k is a multiple of 32, or of 256 for
            formats with K and IQ4_XS.
        panels: uint8 (ceil(rows / 16), bytes), made by `treadle.base.blocks.panels.to_panels`.
        format: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS or MXFP4.
        rows: those of W, features of the result.
        bias: (rows,).
        activations: what x is rounded to: "int16", with which results are nearly those of the
            values of W; "int8", as llama.cpp does; "bfloat16", which the values of W are rounded
            to as well: the fastest for many rows where processors multiply it.

    Returns:
        (..., rows), of the type of x.

    Raises:
        ShapeError: the panels do not have these rows, or x not their number of columns.
        DTypeError: x holds no floats, or panels no bytes.

    Source: the formats are those of GGUF files (ggml).

    Example:
        >>> from treadle.base.blocks.panels import to_panels
        >>> file = np.zeros((2, 34), np.uint8)
        >>> file[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)  # scales
        >>> file[0, 2:] = 1
        >>> weight = mge.tensor(to_panels("Q8_0", file))
        >>> print(F.block_linear(mge.tensor(np.ones(32, np.float32)), weight, "Q8_0", 2))
        Tensor([16.  0.], device=xpux:0)
    """
    x = as_tensor(x)
    y = x.apply(BlockMatmul(format, rows, activations), (x, as_tensor(panels)))[0]
    return y if bias is None else y + bias


def block_experts(
    x: Tensor,
    panels: Tensor,
    experts: Tensor,
    format: str,
    rows: int,
    *,
    activations: str = "int16",
) -> Tensor:
    """Multiply rows by the matrices chosen for them, out of several in quantized blocks.

    y[t, s] = x[t, s or 0] W[experts[t, s]]^T. Only matrices that were chosen are read, and nothing
    is padded: a layer of experts takes two such products and a weighted sum.

    Args:
        x: (tokens, 1, k) where all of a token's experts get the same, else (tokens, chosen, k).
        panels: uint8 (experts, ceil(rows / 16), bytes), `to_panels` of each matrix.
        experts: int32 or int64 (tokens, chosen), from 0 or, negative, from the end.
        format, rows, activations: as for `block_linear`; with "bfloat16" an expert's weights are
            widened once for all rows that chose it.

    Returns:
        (tokens, chosen, rows), of the type of x.

    Raises:
        ShapeError: extents do not fit.
        IndexRangeError: there is no such expert.
        DTypeError: x holds no floats, or experts no integers.

    Source: mixtures of experts, Shazeer et al. 2017, arXiv:1701.06538; formats as in ggml.

    Example:
        >>> from treadle.base.blocks.panels import to_panels
        >>> file = np.zeros((2, 34), np.uint8)
        >>> file[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)  # scales
        >>> file[:, 2:] = [[1], [2]]
        >>> both = mge.tensor(np.stack([to_panels("Q8_0", row[None]) for row in file]))
        >>> x = mge.tensor(np.ones((1, 1, 32), np.float32))
        >>> print(F.block_experts(x, both, mge.tensor([[1, 0]]), "Q8_0", 1).numpy())
        [[[32.]
          [16.]]]
    """
    x = as_tensor(x)
    operands = x, as_tensor(panels), as_tensor(experts)
    return x.apply(BlockExperts(format, rows, activations), operands)[0]
