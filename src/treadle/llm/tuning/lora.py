"""Low-rank additions to the products of a model, as they are trained.

A product y = W x becomes y + s · B (A x), with A (rank, columns), B (rows, rank), and s = α / rank.
W stays as it is, in whatever form it lies. Source: Hu et al., "LoRA" (2021, arXiv:2106.09685); for
s = α / √rank, Kalajdzievski (2023, arXiv:2312.03732).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.base.errors import CheckpointError, NumericError
from treadle.llm.models.matrices import Routing, WeightMatrix, expert_of
from treadle.tensor import Parameter, Tensor

N = TypeVar("N", int, float)
Floats = npt.NDArray[np.float32]
ALL = "all-linear"
"""Every product of layers but those of experts, which names reach; the head is none."""


@dataclass(frozen=True)
class Lora:
    """Modules to adapt, and how.

    Attributes:
        rank: columns of B.
        alpha: numerator of the scale.
        dropout: probability with which an element of the operand is left out in training.
        targets: `ALL`, endings of modules' names, or a regular expression for whole names.
        rslora: the scale is α / √rank.
        ranks, alphas: those of modules whose names end with such an expression.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: str | tuple[str, ...] = ALL
    rslora: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(self.rank, *self.ranks.values(), self.rank) < 1:
            raise NumericError("lora", "ranks are at least 1", saw=str(self.rank))
        if not 0 <= self.dropout < 1:
            raise NumericError("lora", "dropout is a probability below 1", saw=str(self.dropout))

    def reaches(self, module: str) -> bool:
        """Return whether something is added to a module's products."""
        if self.targets == ALL:
            return expert_of(module) is None
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, module) is not None
        return any(module == t or module.endswith(f".{t}") for t in self.targets)

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's addition."""
        return _named(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's B (A x)."""
        rank, alpha = self.rank_of(module), _named(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)


def _named(patterns: Mapping[str, N], module: str, usual: N) -> N:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return usual


@dataclass(frozen=True)
class Adapter:
    """A trained adapter: for every module its A and B, and how they are added."""

    lora: Lora
    pairs: Mapping[str, tuple[Floats, Floats]]

    def change(self, module: str) -> Floats:
        """Return what merging adds to the weight of one of its modules."""
        a, b = self.pairs[module]
        return (b @ a) * np.float32(self.lora.scale_of(module))

    def scaled(self) -> dict[str, tuple[Floats, Floats]]:
        """A and B of modules, B with its scale."""
        scale = self.lora.scale_of
        return {n: (a, b * np.float32(scale(n))) for n, (a, b) in self.pairs.items()}


def modules(products: Iterable[WeightMatrix]) -> dict[str, tuple[int, int]]:
    """Rows and columns of each module that products are of."""
    found: dict[str, tuple[int, int]] = {}
    for p in products:
        rows = max(found.get(p.module, (0, 0))[0], p.first + p.rows)
        found[p.module] = (rows, p.columns)
    return found


def fresh(lora: Lora, products: Iterable[WeightMatrix], seed: int = 0) -> Adapter:
    """An adapter that changes nothing yet: A is random, B is 0.

    Raises:
        CheckpointError: no module is one of the targets.
    """
    rng = np.random.default_rng(seed)
    known = modules(products)
    pairs = {}
    for name, (rows, columns) in known.items():
        if lora.reaches(name):
            bound, rank = 1 / math.sqrt(columns), lora.rank_of(name)
            a = rng.uniform(-bound, bound, (rank, columns)).astype(np.float32)
            pairs[name] = (a, np.zeros((rows, rank), np.float32))
    if not pairs:
        endings = ", ".join(sorted({n.rpartition(".")[2] for n in known}))
        saw, hint = repr(lora.targets), f"the model has {endings}"
        raise CheckpointError("lora", "no module is one of the targets", saw=saw, hint=hint)
    return Adapter(lora, pairs)


class Trained:
    """An adapter in training: all matrices lie in one parameter, so that an update is one op.

    Matrices of experts lie below each other, A and the transposed B, so that a program has two of
    them for each part of a layer.

    Attributes:
        flat: the parameter, float32.
        shapes: of A and B, by module.
    """

    def __init__(self, adapter: Adapter) -> None:
        self.lora = adapter.lora
        self.shapes = {n: (a.shape, b.shape) for n, (a, b) in adapter.pairs.items()}
        parts: dict[str, list[str]] = {}
        for name in self.shapes:
            expert = expert_of(name)
            parts.setdefault(name if expert is None else expert[0], []).append(name)
        self._parts = parts
        every = []
        for part, names in parts.items():
            pairs = [adapter.pairs[n] for n in names]
            every += [a.reshape(-1) for a, _ in pairs]
            every += [(b if part in self.shapes else b.T).reshape(-1) for _, b in pairs]
        self.flat = Parameter(np.concatenate(every))

    def adapter(self) -> Adapter:
        """Return the adapter as trained so far."""
        values, at = np.array(self.flat.numpy()), 0
        pairs = {}

        def taken(*shape: int) -> Floats:
            nonlocal at
            at += math.prod(shape)
            return values[at - math.prod(shape) : at].reshape(shape)

        for part, names in self._parts.items():
            downs = [taken(*self.shapes[n][0]) for n in names]
            turned = part not in self.shapes
            for name, a in zip(names, downs, strict=True):
                rows, rank = self.shapes[name][1]
                b = taken(rank, rows).T if turned else taken(rows, rank)
                pairs[name] = (a, np.ascontiguousarray(b))
        return Adapter(self.lora, {name: pairs[name] for name in self.shapes})

    def additions(self, *, training: bool) -> Additions:
        """Return the changes of products by the adapter, in a program."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        experts: dict[str, tuple[Floats, Floats]] = {}
        at = 0
        for part, names in self._parts.items():
            (rank, columns), (rows, _) = self.shapes[names[0]]
            if part not in self.shapes:
                ranks = [self.shapes[n][0][0] for n in names]
                rank = sum(ranks)
                numbers = [number for _, number in filter(None, map(expert_of, names))]
                scales = [self.lora.scale_of(n) for n in names]
                experts[part] = (
                    np.repeat(np.array(numbers, np.float32), ranks),
                    np.repeat(np.array(scales, np.float32), ranks),
                )
            pair = []
            for shape in ((rank, columns), (rows, rank) if part in self.shapes else (rank, rows)):
                size = math.prod(shape)
                pair.append(F.reshape(self.flat[at : at + size].detach(), shape))
                at += size
            found[part] = (pair[0], pair[1])
        return Additions(self.lora, found, experts, training)


@dataclass(frozen=True)
class Additions:
    """Changes of a model's products by A and B of modules.

    Attributes:
        lora: how they are added.
        pairs: A and B by module; of the experts of a part, A below each other, and B transposed.
        experts: by part, the expert that each row of its pair belongs to, and its scale.
        training: whether elements of operands are left out.
    """

    lora: Lora
    pairs: Mapping[str, tuple[Tensor, Tensor]]
    experts: Mapping[str, tuple[Floats, Floats]]
    training: bool

    @property
    def leaves(self) -> list[Tensor]:
        """All matrices, in the order in which `Trained` keeps them."""
        return [x for pair in self.pairs.values() for x in pair]

    def __call__(self, product: WeightMatrix, x: Tensor, y: Tensor) -> Tensor:
        """y with what is added; computed in float32."""
        pair = self.pairs.get(product.module)
        if pair is None:
            return y
        a, b = pair
        given = self._dropped(x)
        if product.rows != b.shape[0]:
            b = b[product.first : product.first + product.rows]
        more = F.linear(F.linear(given, a), b) * self.lora.scale_of(product.module)
        return (y.astype("float32") + more).astype(y.dtype)

    def of_experts(
        self, products: Sequence[WeightMatrix], x: Tensor, y: Tensor, routing: Routing, /
    ) -> Tensor:
        """All matrices side by side, and zeros for experts that a row does not meet."""
        expert = expert_of(products[0].module)
        if expert is None or expert[0] not in self.experts:
            return y
        (down, up), (numbers, scales) = self.pairs[expert[0]], self.experts[expert[0]]
        inner = F.linear(self._dropped(x), down) * (routing.meets(numbers) * Tensor(scales))
        more = F.matmul(inner, up)
        return (y.astype("float32") + more).astype(y.dtype)

    def _dropped(self, x: Tensor) -> Tensor:
        """Return operands in float32, without what training leaves out of them."""
        given = x.astype("float32")
        if self.lora.dropout and self.training:
            given = F.dropout(given, self.lora.dropout)
        return given
