"""States of random generators inside programs.

A program is given the state that each of its random ops starts from, and the generator moves on
when Python reads it: how much the ops take is known before the program runs. In a branch or a loop
it is not, nor where data decide an extent. From the first such draw the state is a value of the
program, which goes through branches and loops as any other, is moved on by ops, and goes back to
the generator at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.guards import data_decide
from treadle.base.modes import Capturing
from treadle.base.symbol import Dim
from treadle.engine.eager.dispatch import EagerType
from treadle.ops.creation import Extent
from treadle.ops.elementwise import Add, Cast
from treadle.ops.logic import Less
from treadle.ops.movement import Reshape, Roll
from treadle.ops.slicing import Pad
from treadle.ops.transfer import Transfer
from treadle.tensor import Tensor


class Streams:
    """The generators that a captured program moves on itself.

    Attributes:
        now: their states, as tensors of the capture.
    """

    def __init__(self, capture: Capturing) -> None:
        self._capture = capture
        self.now: dict[Any, Tensor] = {}

    def draw(self, stream: Any, blocks: Dim, kind: EagerType) -> Tensor:
        """The state from which an op takes `blocks`."""
        if stream not in self.now and not self._knows(blocks):
            self.begin(stream, kind)
        if stream not in self.now:
            made: Tensor = self._capture.host_value(object(), stream.reserve, kind, (4,), (blocks,))
            return made
        now = self.now[stream]
        self.now[stream] = moved_on(self._capture, now, blocks)
        return (
            now if now._kind is kind else self._capture.apply(Transfer(str(kind.device)), (now,))[0]
        )

    def _knows(self, blocks: Dim) -> bool:
        """Return whether Python knows what is drawn before the program runs."""
        return not data_decide(blocks)

    def begin(self, stream: Any, kind: EagerType) -> Tensor:
        """The state of a generator, which the program moves on from here."""
        if stream not in self.now:
            self.now[stream] = self._first(stream, kind)
        return self.now[stream]

    def _first(self, stream: Any, kind: EagerType) -> Tensor:
        found: Tensor = self._capture.host_value(object(), stream.reserve, kind, (4,), (0,))
        return found


class RegionStreams(Streams):
    """Those of a branch or a loop, which takes states from outside and returns them.

    Attributes:
        taken: the states it took, as tensors of the outer capture.
        kinds: their types.
    """

    def __init__(self, capture: Capturing, outer: Streams) -> None:
        super().__init__(capture)
        self._outer = outer
        self.taken: dict[Any, Tensor] = {}
        self.kinds: dict[Any, EagerType] = {}

    def _knows(self, blocks: Dim) -> bool:
        return False

    def _first(self, stream: Any, kind: EagerType) -> Tensor:
        self.kinds[stream] = kind
        self.taken[stream] = self._outer.begin(stream, kind)
        return self.taken[stream]


def moved_on(capture: Capturing, state: Tensor, blocks: Dim) -> Tensor:
    """Append ops that move a state by so many blocks.

    Args:
        capture: where.
        state: uint32[4], two words of key, the low and the high word of the counter.
        blocks: how far the counter moves.
    """
    if isinstance(blocks, int):
        words = np.array([0, 0, blocks & 0xFFFFFFFF, blocks >> 32], np.uint32)
        step = Tensor(words, dtype=dt.uint32, device=state._kind.device)
    else:
        (count,) = capture.create(Extent(blocks, dt.uint32), state._kind.device)
        (row,) = capture.apply(Reshape((1,)), (count,))
        (step,) = capture.apply(Pad(((2, 1),)), (row,))
    (sums,) = capture.apply(Add(), (state, step))
    # The low word became smaller: one more for the high word, which is the next one.
    (passed,) = capture.apply(Less(), (sums, state))
    (ones,) = capture.apply(Cast(dt.uint32), (passed,))
    (carried,) = capture.apply(Roll((1,), (0,)), (ones,))
    moved: Tensor = capture.apply(Add(), (sums, carried))[0]
    return moved
