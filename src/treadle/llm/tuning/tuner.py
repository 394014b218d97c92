"""`Tuner`: steps of training that change an adapter and leave the model as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.autodiff import GradManager, recompute
from treadle.base.errors import NumericError
from treadle.llm.models import DecoderModel
from treadle.llm.models.decoder import DecoderLayer, Shared
from treadle.llm.models.programs import compiled
from treadle.llm.tuning.lora import Adapter, Additions, Trained
from treadle.llm.tuning.packed import Packed
from treadle.optimizer import AdamW, clip_grad_norm
from treadle.tensor import Tensor

LOGITS = 1 << 27
"""Bytes of logits that are there at a time, about."""


@dataclass(frozen=True)
class Rows:
    """Tokens to learn from; every array is (batch, time).

    Attributes:
        tokens: int32; padding may be any.
        segments: int32, a number for each text of a row.
        positions: int32, of a token in its text.
        targets: int32, the token that comes next.
        weights: float32, what the loss of a target counts; 0 for prompts and padding.
    """

    tokens: npt.NDArray[np.int32]
    segments: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]


Given: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Rows as programs take them: of tokens, what the embedding's table gives for them."""


@dataclass(frozen=True)
class Schedule:
    """Learning rates: up in a line, then down to 0 as a cosine or a line, or not at all.

    Attributes:
        peak: the largest.
        warmup: updates until it is reached.
        updates: all of them.
        kind: "cosine", "linear" or "constant".
    """

    peak: float = 2e-4
    warmup: int = 0
    updates: int = 1000
    kind: str = "cosine"

    def __post_init__(self) -> None:
        if self.kind not in ("cosine", "linear", "constant"):
            hint = "use cosine, linear or constant"
            raise NumericError("schedule", "is unknown", saw=repr(self.kind), hint=hint)

    def at(self, update: int) -> float:
        """Return the learning rate of an update, counted from 0."""
        if update < self.warmup:
            return self.peak * (update + 1) / self.warmup
        if self.kind == "constant":
            return self.peak
        left = max(0, self.updates - update) / max(1, self.updates - self.warmup)
        if self.kind == "linear":
            return self.peak * left
        return self.peak * 0.5 * (1 + math.cos(math.pi * (1 - left)))


class Tuner:
    """Trains an adapter of a model.

    A step is one program: forward, loss, backward, and update. Quantized weights are multiplied as
    they lie, and logits are made a part of the rows at a time.

    Args:
        model: whose weights stay as they are.
        adapter: where it begins.
        schedule: learning rates.
        weight_decay, betas, eps: of AdamW.
        clip: largest joint norm of the gradients; 0: any.
        recompute: whether a layer's inner values are computed again in backward, so that memory
            holds what one layer needs, for half as much time again. None: where they would take
            more than half of what the weights take.
    """

    def __init__(
        self,
        model: DecoderModel,
        adapter: Adapter,
        schedule: Schedule | None = None,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip: float = 1.0,
        recompute: bool | None = None,
    ) -> None:
        self.schedule = schedule or Schedule()
        self.trained = Trained(adapter)
        self.updates = 0
        self._stack = model.stack
        self._clip = clip
        self._recompute = recompute
        flat = self.trained.flat
        self.optimizer = AdamW([flat], self.schedule.peak, betas, eps, weight_decay)
        self._sum: Any = None  # a tensor, once an update has several batches
        self._whole = compiled(self._step)
        self._collect = compiled(self._add)
        self._update = compiled(self._finish)
        self._judge = compiled(self._evaluate)

    def step(self, batches: Sequence[Rows]) -> float:
        """One update, from the mean loss of the targets of all batches, which it returns."""
        total = math.fsum(float(rows.weights.sum()) for rows in batches)
        if not total > 0:
            raise NumericError("tune", "these rows have no token to learn", saw=str(total))
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.at(self.updates)
        share = Tensor(np.float32(1 / total))
        if len(batches) == 1:
            found = float(self._whole(self._given(batches[0]), share).numpy())
        else:
            if self._sum is None:
                self._sum = Tensor(np.zeros(self.trained.flat.shape, np.float32))
            parts = [self._collect(self._given(rows), share).numpy() for rows in batches]
            self._update()
            found = math.fsum(map(float, parts))
        self.updates += 1
        return found

    def evaluate(self, batches: Sequence[Rows]) -> float:
        """The mean loss of the targets of all batches; nothing is changed."""
        parts = [float(self._judge(self._given(rows)).numpy()) for rows in batches]
        total = math.fsum(float(rows.weights.sum()) for rows in batches)
        return math.fsum(parts) / total if total else math.nan

    def adapter(self) -> Adapter:
        """Return the adapter as trained so far."""
        return self.trained.adapter()

    def state(self) -> dict[str, Any]:
        """Return the state that `restore` goes on from, for `treadle.save`."""
        return {
            "updates": self.updates,
            "modules": [[n, *map(list, shapes)] for n, shapes in self.trained.shapes.items()],
            "flat": np.array(self.trained.flat.numpy()),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: Any) -> bool:
        """Go on from a state; False, and nothing is changed, where it is of another one."""
        mine = self.state()
        if not isinstance(state, dict) or state.get("modules") != mine["modules"]:
            return False
        flat, updates = state.get("flat"), state.get("updates")
        if not isinstance(flat, np.ndarray) or flat.shape != mine["flat"].shape:
            return False
        if not isinstance(updates, int) or updates < 0:
            return False
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        self.trained.flat._reset(Tensor(flat.astype(np.float32)))
        self.updates = updates
        return True

    # -- programs --------------------------------------------------------------------------

    def _given(self, rows: Rows) -> Given:
        return (
            self._stack.embedding.given(rows.tokens),
            *(Tensor(rows.segments), Tensor(rows.positions)),
            *(Tensor(rows.targets), Tensor(rows.weights)),
        )

    def _step(self, given: Given, share: Tensor) -> Tensor:
        loss, slope = self._learn(given, share)
        self._apply(slope)
        return loss

    def _add(self, given: Given, share: Tensor) -> Tensor:
        loss, slope = self._learn(given, share)
        self._sum[...] = self._sum + slope
        return loss

    def _finish(self) -> None:
        self._apply(self._sum * 1.0)
        self._sum[...] = F.zeros_like(self._sum)

    def _apply(self, slope: Tensor) -> None:
        """An update by a gradient."""
        flat = self.trained.flat
        flat.grad = slope
        if self._clip:
            clip_grad_norm(flat, self._clip)
        self.optimizer.step().clear_grad()

    def _learn(self, given: Given, share: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and its gradient by all matrices of the adapter."""
        additions = self.trained.additions(training=True)
        manager = GradManager().attach(additions.leaves)
        tokens, segments, positions, targets, weights = given
        with manager:
            x = self._hidden(tokens, segments, positions, additions)
            loss, dx = self._head(x.detach(), targets, weights * share)
            manager.backward(x, dx)
        return loss, F.concat([F.flatten(_taken(leaf)) for leaf in additions.leaves])

    def _evaluate(self, given: Given) -> Tensor:
        tokens, segments, positions, targets, weights = given
        x = self._hidden(tokens, segments, positions, self.trained.additions(training=False))
        parts = [self._loss(*part) for part in self._parts(x, targets, weights)]
        total: Tensor = F.stack(parts).sum()
        return total

    def _hidden(
        self, given: Tensor, segments: Tensor, positions: Tensor, additions: Additions
    ) -> Tensor:
        """Return the last layer's output."""
        stack = self._stack
        memory = Packed(segments, [layer.attention.declared.window for layer in stack.layers])
        shared = Shared(stack.angles(positions, positions.max(1) + 1), additions)

        def run(layer: DecoderLayer, x: Tensor) -> Tensor:
            return layer(x, memory, shared)

        x = stack.embedded(given)
        again = self._recompute
        if again is None:
            again = self._nbytes(x) > stack.nbytes / 2
        for layer in stack.layers:
            x = (recompute(run) if again else run)(layer, x)
        return x

    def _nbytes(self, x: Tensor) -> int:
        """About what all layers keep for backward: operands and results of products."""
        tokens, products = x.shape[0] * x.shape[1], self._stack.products()
        each = sum((p.rows + p.columns) * p.share for p in products)
        return int(tokens * each * x.dtype.itemsize)

    def _head(self, x: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and its gradient by what the last layer gave."""
        losses, slopes = [], []
        for part, wanted, counts in self._parts(x, targets, weights):
            manager = GradManager().attach(part)
            with manager:
                loss = self._loss(part, wanted, counts)
                manager.backward(loss)
            losses.append(loss.detach())
            slopes.append(_taken(part))
        return F.stack(losses).sum(), F.reshape(F.concat(slopes, 1), x.shape)

    def _parts(
        self, x: Tensor, targets: Tensor, weights: Tensor
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Rows of which logits are made at a time."""
        count = x.shape[0] * x.shape[1]
        flat = F.reshape(x, (1, count, x.shape[2]))
        wanted, counts = F.reshape(targets, (count,)), F.reshape(weights, (count,))
        size = max(32, LOGITS // (4 * self._stack.declared.vocabulary))
        found = []
        for first in range(0, count, size):
            span = slice(first, min(first + size, count))
            found.append((flat[:, span], wanted[span], counts[span]))
        return found

    def _loss(self, x: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        logits = self._stack.logits(x)[0]
        losses = F.loss.cross_entropy(logits, targets, reduction="none")
        total: Tensor = (losses * weights).sum()
        return total


def _taken(leaf: Tensor) -> Tensor:
    """The gradient that backward left with a tensor of a program, which is done with it."""
    found: Tensor = F.zeros_like(leaf) if leaf.grad is None else leaf.grad
    leaf.grad = None
    return found
