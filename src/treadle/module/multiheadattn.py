"""Attention in several heads as a layer."""

from __future__ import annotations

import math

import numpy as np

import treadle.functional as F
from treadle import random
from treadle.autodiff import no_grad
from treadle.base.errors import ShapeError
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor


class MultiHeadAttention(Module):
    """Projects query, key and value, attends in every head, and projects the joined heads.

    `forward(query, key, value, ...)` takes (N, L, embed_dim), (N, S, kdim) and (N, S, vdim) and
    the masks and switches of `F.multi_head_attention`; it returns (N, L, embed_dim) and the
    attention weights, which are None unless asked for.

    Args:
        embed_dim: features of the query and of the result.
        num_heads: heads, which share the features evenly.
        attn_dropout, out_dropout: probabilities of zero in the weights and in the result.
        bias: whether the four projections have biases.
        add_bias_kv: add a trained key and value, the same for all samples.
        add_zero_attn: add a key and a value of zeros.
        kdim, vdim: features of keys and values; `embed_dim` if left out.
        name: a name for messages and graphs.

    Parameters: `io_weight_bias` (1, total): the weights of query (embed_dim, embed_dim), key
    (kdim, embed_dim), value (vdim, embed_dim) and output (embed_dim, embed_dim), used as x W + b,
    then the four biases (embed_dim,). Weights are drawn by Glorot's uniform rule one by one, biases
    are zero. With `add_bias_kv`, `bias_k` and `bias_v` (1, 1, embed_dim).

    Raises:
        ShapeError: `embed_dim` does not split into the heads.
        ValueError: a probability is outside [0, 1).

    Source: Vaswani et al., Attention is all you need, 2017.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attn_dropout: float = 0.0,
        out_dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        require_size(embed_dim, "MultiHeadAttention: embed_dim", least=1)
        require_size(num_heads, "MultiHeadAttention: num_heads", least=1)
        if embed_dim % num_heads:
            raise ShapeError(
                "MultiHeadAttention",
                "embed_dim must be divisible by num_heads",
                saw=f"embed_dim={embed_dim}, num_heads={num_heads}",
                hint="num_heads divides embed_dim",
            )
        for what, share in (("attn_dropout", attn_dropout), ("out_dropout", out_dropout)):
            if not 0 <= share < 1:
                raise ValueError(f"MultiHeadAttention: {what} must be in [0, 1), got {share}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.attn_dropout = attn_dropout
        self.out_dropout = out_dropout
        self.bias = bias
        self.add_bias_kv = add_bias_kv
        self.add_zero_attn = add_zero_attn
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        total = sum(rows * embed_dim for rows in self._rows()) + (4 * embed_dim if bias else 0)
        self.io_weight_bias = Parameter(np.zeros((1, total), np.float32))
        row = np.zeros((1, 1, embed_dim), np.float32)
        self.bias_k = Parameter(row) if add_bias_kv else None
        self.bias_v = Parameter(row) if add_bias_kv else None
        self.reset_parameters()

    def _rows(self) -> tuple[int, ...]:
        """Input features of the projections of query, key, value and output."""
        return self.embed_dim, self.kdim, self.vdim, self.embed_dim

    def reset_parameters(self) -> None:
        """Draw the weights anew and zero the biases."""
        with no_grad():
            parts = []
            for rows in self._rows():
                bound = math.sqrt(6.0 / (rows + self.embed_dim))
                parts.append(random.uniform(-bound, bound, size=(rows * self.embed_dim,)))
            if self.bias:
                parts.append(F.zeros(4 * self.embed_dim))
            packed = self.io_weight_bias
            there = F.concat(parts).reshape(packed.shape).to(packed.device)
            packed._reset(there.astype(packed.dtype))
        for further in (self.bias_k, self.bias_v):
            if further is not None:
                init.xavier_normal_(further)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        is_causal: bool = False,
        maybe_cudnn_style_mask: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        bias = self.bias
        return F.multi_head_attention(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.attn_dropout,
            self.out_dropout,
            self.io_weight_bias,
            qbias=bias,
            kbias=bias,
            vbias=bias,
            obias=bias,
            bias_k=self.bias_k,
            bias_v=self.bias_v,
            add_zero_attn=self.add_zero_attn,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            need_weights=need_weights,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            maybe_cudnn_style_mask=maybe_cudnn_style_mask,
            training=self.training,
        )

    def _module_info_string(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, "
            f"dropout={self.attn_dropout}, bias={self.bias}, kdim={self.kdim}, vdim={self.vdim}"
        )
