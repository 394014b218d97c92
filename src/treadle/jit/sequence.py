"""Calls of a traced function that cannot be captured: op by op, with their course written down."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from treadle.base.modes import LOCAL, install_capture
from treadle.base.symbol import Dim
from treadle.engine.devices.names import CompNode
from treadle.engine.eager.dispatch import EagerType
from treadle.graph.ir import op_key
from treadle.jit.course import Course, Given, Left, RecordedOp
from treadle.ops.op import Op
from treadle.tensor import Tensor, create, execute, scalar_tensor, wrap


class SequenceWatch:
    """Stands where a capture stands, runs every op and writes down which it was.

    Args:
        leaves: arguments of the call, flattened.
        left: what calls before it left.
        attributes: write down attributes of ops, too.
    """

    def __init__(self, leaves: Sequence[Any], left: Left, *, attributes: bool) -> None:
        self._key = op_key if attributes else _name
        self._attributes = attributes
        self._steps: list[RecordedOp] = []
        self._left = left
        self.endings: list[Callable[[], None]] = []
        self._known: dict[int, tuple[weakref.ref[Tensor], Given]] = {}
        self._outside = 0
        self._state = 0
        self._empty: dict[int, bool] = {}
        self._whole = True
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                self._meet(leaf)

    def __enter__(self) -> None:
        self._hook = LOCAL.hook
        install_capture(self)

    def __exit__(self, *_: object) -> None:
        install_capture(None, self._hook)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Run ops unseen in the block."""
        LOCAL.capture = None
        try:
            yield
        finally:
            LOCAL.capture = self

    def interrupt(self) -> None:
        """Stop comparing operands from here on: nobody saw what tensors became for a while."""
        self._whole = False

    # -- which tensor is which -------------------------------------------------------------

    def _note(self, tensor: Tensor, given: Given) -> None:
        self._known[id(tensor)] = weakref.ref(tensor), given

    def _find(self, tensor: Tensor) -> Given | None:
        reference, given = self._known.get(id(tensor), (None, None))
        return given if reference is not None and reference() is tensor else None

    def _meet(self, tensor: Tensor) -> Given:
        """Return a tensor's origin; one from outside gets the next number."""
        found = self._find(tensor)
        if found is None:
            found = "external", self._outside
            self._outside += 1
            self._note(tensor, found)
        return found

    def _operand(self, tensor: Tensor) -> Given:
        found = self._find(tensor)
        if found is None:
            self._state += self._left.count([tensor])
            found = self._meet(tensor)
        return found

    def _ran(self, key: str, given: tuple[Given, ...], results: tuple[Tensor, ...]) -> None:
        for i, result in enumerate(results):
            self._note(result, ("internal", (len(self._steps), i)))
        self._steps.append(RecordedOp(key, given if self._whole else ()))

    def course(self, results: Sequence[Any]) -> Course:
        """The course of the call, which returned these."""
        found = [self._find(x) for x in results if isinstance(x, Tensor)]
        internal = [g for g in found if g is not None and g[0] == "internal"]
        read = frozenset(internal if self._whole else ())
        return Course(self._steps, read, (tuple(self._empty.values()), self._state))

    def alive(self) -> list[weakref.ref[Tensor]]:
        """Tensors that the call made and somebody holds."""
        made = [r for r, given in self._known.values() if given[0] == "internal"]
        return [r for r in made if r() is not None]

    # -- what modes.Capturing asks for -----------------------------------------------------

    def apply(self, op: Op, inputs: tuple[Tensor, ...], /) -> tuple[Tensor, ...]:
        """Run an op."""
        given = tuple([self._operand(t) for t in inputs])
        with self._aside():
            results = execute(op, inputs)
        self._ran(self._key(op), given, results)
        return results

    def binary(self, op: Op, launch: Any, kind: Any, x: Tensor, y: Tensor, /) -> Tensor:
        """Run an arithmetic operator."""
        return self.apply(op, (x, y))[0]

    def create(self, op: Op, device: CompNode, /) -> tuple[Tensor, ...]:
        """Run an op without operands."""
        with self._aside():
            results = create(op, device)
        self._ran(self._key(op), (), results)
        return results

    def literal(self, value: Any, kind: EagerType, /) -> Tensor:
        """Return a number as a tensor that is part of the op that uses it."""
        with self._aside():
            made = scalar_tensor(value, kind)
        # A copy: the number's tensor is shared by all who ask for it.
        made = wrap(made._data, made._kind)
        self._note(made, ("const", repr(value) if self._attributes else ""))
        return made

    def born(self, tensor: Tensor, /) -> None:
        """Host data is not compared."""
        self._note(tensor, ("const", ""))

    def rebound(self, tensor: Tensor, value: Tensor, /) -> None:
        """Note that a handle stands for another value from here on."""
        self._note(tensor, self._operand(value))

    def watch_grad(self, tensor: Tensor, /) -> None:
        """Note whether a tensor has a gradient; gradients are kept as they are outside."""
        self._empty.setdefault(id(tensor), tensor.__dict__.get("grad") is None)

    def host_value(
        self,
        key: Any,
        read: Callable[..., Any],
        kind: EagerType,
        shape: tuple[int, ...] = (),
        extents: tuple[Dim, ...] = (),
        /,
    ) -> Tensor:
        """Read a number that is read at each call."""
        with self._aside():
            return Tensor(read(*extents), dtype=kind.dtype, device=kind.device)

    for_file = False

    def random_state(self, stream: Any, blocks: Dim, kind: EagerType, /) -> Tensor:
        """Take a part of a generator's stream."""
        return self.host_value(None, stream.reserve, kind, (4,), (blocks,))

    def enter_manager(self, outer: bool, /) -> None:
        """Do nothing: managers record as they do outside."""

    def guard(self, read: Callable[[], Any], value: Any, /) -> None:
        """Do nothing: the body runs at each call anyway."""


def _name(op: Op) -> str:
    return op.name


__all__ = ["SequenceWatch"]
