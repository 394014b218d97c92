"""Declarations of families: small records from which the decoder is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.llm.models.rope import Rotary


@dataclass(frozen=True)
class Norm:
    """x over its root mean square, times w, or times 1 + w."""

    eps: float
    plus_one: bool = False


@dataclass(frozen=True)
class Attention:
    """Attention of one layer.

    Attributes:
        features: of one head.
        rotary: how queries and keys are turned; None: they are not.
        bias, output_bias: of the projections to queries, keys and values; of that behind.
        window: keys that a query sees, its own included; None: all before it.
        softcap: c of scores c · tanh(s / c).
        sinks: every head has one more logit in the sum of its softmax, without a value.
        norm: of queries and keys, before they are turned.
        norm_over_heads: one norm over all heads together, not one for each.
        clip: bound of queries, keys and values before they are divided among heads.
    """

    heads: int
    kv_heads: int
    features: int
    scale: float
    rotary: Rotary | None
    bias: bool = False
    output_bias: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    norm: Norm | None = None
    norm_over_heads: bool = False
    clip: float | None = None


@dataclass(frozen=True)
class Gated:
    """down(mix(gate(x), up(x))); see `gates.mix`."""

    width: int
    mix: str
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """Gated units, of which every token uses some.

    Attributes:
        router: name of the tensor whose products choose.
        renormalized: weights of those chosen add up to 1.
        router_bias: of the choice.
    """

    count: int
    used: int
    gated: Gated
    router: str = "gate"
    renormalized: bool = True
    router_bias: bool = False


@dataclass(frozen=True)
class Layer:
    """Attention, then a gated unit or experts.

    Attributes:
        sandwich: what attention and feed-forward give is normalized, too, before it is added.
    """

    attention: Attention
    feed: Gated | Experts
    norm: Norm
    sandwich: bool = False


@dataclass(frozen=True)
class Piece:
    """Place of a tensor: in a tensor of the checkpoint, as some of its rows.

    Attributes:
        name: of the tensor in the checkpoint.
        rows: which of its rows; for tensors of experts, of each of them.
        axis: along which these lie.
        transposed: the last two axes of a weight are exchanged in the file.
    """

    name: str
    rows: slice | None = None
    axis: int = 0
    transposed: bool = False


Names = Callable[[str], Sequence[Piece]]
"""Places of a tensor by its usual name; the first one that exists counts."""


def usual_names(name: str) -> Sequence[Piece]:
    """Return the piece that a tensor is under its usual name."""
    return (Piece(name),)


@dataclass(frozen=True)
class Decoder:
    """A model that continues text.

    Attributes:
        context: positions that it was made for.
        embedding_scale: what embeddings are multiplied by, rounded to their element type.
        logit_softcap: c of logits c · tanh(l / c).
        tied: the head is the embedding.
    """

    vocabulary: int
    hidden: int
    context: int
    layers: tuple[Layer, ...]
    norm: Norm
    tied: bool
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    names: Names = usual_names


@dataclass(frozen=True)
class LayerNorm:
    """(x − mean) over the deviation, times w, plus b where there is one."""

    eps: float
    bias: bool = True


@dataclass(frozen=True)
class EncoderLayer:
    """Attention in both directions and a feed-forward.

    Attributes:
        mix: the activation, a key of `gates.ACTIVATIONS`.
        reach: how far away a key may be that is seen; None: all are.
    """

    heads: int
    features: int
    width: int
    mix: str
    gated: bool = False
    bias: bool = True
    feed_bias: bool = True
    rotary: Rotary | None = None
    reach: int | None = None


@dataclass(frozen=True)
class Encoder:
    """A model that turns texts into vectors.

    Attributes:
        norm_first: norms stand before attention and feed-forward, one behind all layers; else
            behind what these are added to.
        positions: every position has a vector that was learned.
        types: kinds of tokens, such as those of a question and of an answer; 0: none.
        head_mix, head_norm, head_bias, head_pooling: how a classifier's input is made of rows:
            those that `head_pooling` takes, times a matrix, through an activation, and a norm.
    """

    vocabulary: int
    hidden: int
    context: int
    layers: tuple[EncoderLayer, ...]
    norm: LayerNorm
    norm_first: bool
    positions: bool = False
    types: int = 0
    head_mix: str = "tanh"
    head_norm: bool = False
    head_bias: bool = True
    head_pooling: str = "cls"
    names: Names = usual_names
