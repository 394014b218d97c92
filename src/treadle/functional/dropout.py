"""Dropout (Srivastava et al., 2014)."""

from __future__ import annotations

from treadle.functional.arguments import as_tensor, widened
from treadle.ops.methods import either
from treadle.random.generator import default_generator
from treadle.tensor import Tensor

__all__ = ["dropout"]


def dropout(
    inp: Tensor, drop_prob: float | None = None, training: bool = True, p: float | None = None
) -> Tensor:
    """Zero elements with a probability in [0, 1) and scale the others by 1 / (1 - drop_prob).

    The result has the shape of `inp`, and its values where not `training`. Zeros are drawn from the
    generator that `mge.random.seed` restarts.

    Raises:
        ValueError: the probability is outside [0, 1).

    Example:
        >>> mge.random.seed(1)
        >>> F.dropout(F.ones(8), 0.5).tolist()
        [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 2.0]
    """
    drop_prob = drop_prob if p is None else either("drop_prob", drop_prob, p)
    if drop_prob is None:
        raise TypeError("dropout: missing drop_prob, a number in [0, 1)")
    if not 0 <= drop_prob < 1:
        raise ValueError(f"drop_prob must be in [0, 1), got {drop_prob}")
    x = as_tensor(inp)
    if not training or drop_prob == 0:
        return +x  # not x itself, which in-place operators on the result would change
    draws = default_generator().uniform(size=x.shape).to(x.device)
    wide = widened(x)  # A scale of 16 bits would move the mean.
    kept = (draws >= drop_prob).astype(wide.dtype)
    return (wide * (kept * (1 / (1 - drop_prob)))).astype(x.dtype)
