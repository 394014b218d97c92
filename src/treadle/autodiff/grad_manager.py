"""`GradManager`: which tensors get gradients, and of which computations."""

from __future__ import annotations

import abc
import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from treadle.autodiff.tape import Tape, TapeNode, current
from treadle.base.errors import AutodiffError, ShapeError
from treadle.base.loc import user_location
from treadle.base.log import get_logger
from treadle.base.modes import capturing, uncast
from treadle.ops.reverse import backpropagate
from treadle.ops.transfer import StopGradient
from treadle.tensor import Tensor, execute, wrap

Callback = Callable[[Tensor, Any], Any]

_NO_HISTORY = "no computation history. did you forget record() or call a method that clears it?"

_RECORD = (
    "compute the loss and call backward inside of `with gm:`, once; for several losses pass a list"
)


class _Table(dict[int, "_Attached"]):
    """Attached tensors by `id`; the tensors are referred to weakly."""

    __slots__ = ("__weakref__",)


def _forget(table: weakref.ref[_Table], number: int, _: object) -> None:
    """Drop the entry of a tensor that is gone, if the table is still there."""
    held = table()
    if held is not None:
        held.pop(number, None)


class _Attached:
    """One attached tensor, held weakly, its callbacks, and its value when recording began."""

    __slots__ = ("callbacks", "tensor", "trace")

    def __init__(self, tensor: Tensor, table: _Table) -> None:
        # The table, and so the manager, is not kept alive by the tensor.
        gone = functools.partial(_forget, weakref.ref(table), id(tensor))
        self.tensor = weakref.ref(tensor, gone)
        self.callbacks: list[Callback] = []
        self.trace: tuple[TapeNode, int] | None = None


class GradManager:
    """Computes gradients of recorded computations with respect to attached tensors.

    Example:
        >>> import numpy as np
        >>> import treadle as mge
        >>> w = mge.tensor(np.array([2.0], "float32"))
        >>> gm = mge.autodiff.GradManager().attach(w)
        >>> with gm:
        ...     gm.backward(w * w)
        >>> print(w.grad)
        Tensor([4.], device=xpux:0)

    Managers nest: what an inner manager's `backward` computes is recorded for the outer ones, so
    gradients can be differentiated again. Managers joined by `|` record together and do not see
    one another's results.
    """

    def __init__(self, *given: Any) -> None:
        if given:
            raise TypeError("GradManager takes nothing; GradManager().attach(net.parameters())")
        self._attached = _Table()
        self._tape: Tape | None = None
        self._depth = 0
        self._since = 0
        self._warned = False
        self._after_backward: list[Callable[[], Any]] = []

    def attached_tensors(self) -> list[Tensor]:
        """The attached tensors that are still alive."""
        found = [entry.tensor() for entry in self._attached.values()]
        return [t for t in found if t is not None]

    def attach(
        self,
        tensors: Tensor | Iterable[Tensor],
        callbacks: Callback | Iterable[Callback] | None = None,
    ) -> GradManager:
        """Ask for gradients of one tensor or several.

        Args:
            tensors: floating tensors; only weak references are kept.
            callbacks: called in order as `callback(tensor, grad)` after each backward; each
                result feeds the next, the last is accumulated into `tensor.grad`. A None leaves
                the gradient unset; an object with `get()` is asked once all callbacks have run.

        Returns:
            The manager itself.
        """
        alone = isinstance(tensors, Tensor) or not isinstance(tensors, Iterable)
        several: list[Any] = [tensors] if alone else list(tensors)
        given = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
        for tensor in several:
            _check_attachable(tensor)
            entry = self._attached.get(id(tensor))
            if entry is None or entry.tensor() is not tensor:
                entry = self._attached[id(tensor)] = _Attached(tensor, self._attached)
            entry.callbacks += given
            if self._tape is not None and entry.trace is None:
                entry.trace = self._tape.leaf(tensor)
        return self

    def _register_after_backward_callback(self, callback: Callable[[], Any]) -> GradManager:
        """Call back once per backward, after the gradients and before promises are asked."""
        self._after_backward.append(callback)
        return self

    # -- recording -------------------------------------------------------------------------

    def record(self) -> None:
        """Start recording on this thread; `with gm:` is preferred.

        Raises:
            AutodiffError: the manager is already recording.
        """
        self._begin(current().enter())

    def _begin(self, depth: int) -> None:
        tape = current()
        if self._tape is not None:
            tape.leave()
            raise AutodiffError("GradManager", "already recording", hint="release() first")
        self._tape, self._depth, self._since = tape, depth, tape.now()
        for entry in list(self._attached.values()):
            tensor = entry.tensor()
            entry.trace = None if tensor is None else tape.leaf(tensor)

    def release(self) -> None:
        """Stop recording and let go of everything that was saved; harmless when not recording."""
        tape, self._tape = self._tape, None
        if tape is None:
            return
        for entry in self._attached.values():
            tensor, trace = entry.tensor(), entry.trace
            entry.trace = None
            if tensor is not None and tape.managers == 1 and tensor._trace is trace:
                tensor._trace = None
        tape.leave()

    def __enter__(self) -> GradManager:
        self.record()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        return GradManagerGroup([self]) | other

    # -- backward --------------------------------------------------------------------------

    def backward(
        self,
        y: Tensor | Sequence[Tensor] | None = None,
        dy: Tensor | Sequence[Tensor] | None = None,
    ) -> None:
        """Accumulate the gradients of `y` into the `.grad` of the attached tensors.

        Recording of this manager ends. Tensors that `y` does not depend on are left alone.

        Args:
            y: one output or several; None calls nothing but ends the recording.
            dy: cotangents of the same number and shapes; ones if left out.

        Raises:
            AutodiffError: the manager is not recording.
            ShapeError: a cotangent differs in shape from its output.
        """
        tape = self._tape
        if tape is None:
            raise AutodiffError("backward", _NO_HISTORY, hint=_RECORD)
        outputs, cotangents = _seeds(y, dy)
        before, _BACKWARDING[0] = _BACKWARDING[0], self
        try:
            with tape.visible_below(self._depth):
                with uncast():
                    found = self._gradients(tape, outputs, cotangents)
                if outputs and not self._warned and all(grad is None for _, grad in found):
                    self._warn_of_no_gradient(tape)
                self._deliver(found, {id(cotangent) for cotangent in cotangents})
        finally:
            _BACKWARDING[0] = before
            self.release()

    def _gradients(
        self, tape: Tape, outputs: list[Tensor], cotangents: list[Tensor]
    ) -> list[tuple[_Attached, Tensor | None]]:
        seeds: dict[Any, Tensor] = {}
        for out, dy in zip(outputs, cotangents, strict=True):
            if out._trace is not None:
                seeds[out._trace] = dy if out._trace not in seeds else seeds[out._trace] + dy
        for out in tape.owed:
            seeds.setdefault(out._trace, _zeros_like(out))
        ends = [y._trace for y in (*outputs, *tape.owed)]
        nodes = tape.ancestors(ends, self._since, self._depth)
        entries = [e for e in self._attached.values() if e.trace is not None]
        wanted = list(dict.fromkeys([e.trace for e in entries] + [t._trace for t in tape.involved]))
        found = _walk(tape, nodes, seeds, wanted, _notices(entries))
        return [(e, found.get(e.trace)) for e in entries]

    def _warn_of_no_gradient(self, tape: Tape) -> None:
        """Say once why `backward` had nothing to do."""
        attached = self.attached_tensors()
        if tape.owed or tape.involved or tape.depth > 1:
            return  # Other ranks, custom functions or other managers take part.
        self._warned = True
        if attached:
            why = (
                f"as recorded, y depends on none of the {len(attached)} attached tensors (the "
                f"first is {attached[0].type}). Compute it from them inside of `with gm:`; "
                ".numpy(), .detach() and no_grad() cut what is recorded"
            )
        else:
            why = "no tensor is attached. Call gm.attach(net.parameters()) before the block"
        get_logger().warning(
            "GradManager.backward gives no gradient: %s. At %s", why, user_location()
        )

    def _deliver(self, found: list[tuple[_Attached, Tensor | None]], shared: set[int]) -> None:
        """Run callbacks, wait for what they promised, then accumulate.

        `shared` holds the ids of tensors that somebody else has a handle of.
        """
        results: list[tuple[Tensor, Any]] = []
        for entry, grad in found:
            tensor = entry.tensor()
            if tensor is None or grad is None:
                continue
            result: Any = grad
            for callback in entry.callbacks:
                result = callback(tensor, result)
            results.append((tensor, result))
        for callback_after in self._after_backward:
            callback_after()
        for tensor, result in results:
            settled = result if isinstance(result, Tensor) or result is None else result.get()
            if settled is not None:
                mine = _own_handle(settled, shared)
                tensor.grad = mine if tensor.grad is None else _added(tensor.grad, settled)


def _added(before: Tensor, grad: Tensor) -> Tensor:
    """The sum of two gradients, which knows that an optimizer has stepped by the first already."""
    total = before + grad
    if "_stepped" in before.__dict__:
        total.__dict__["_stepped"] = "again"
    return total


def _own_handle(grad: Tensor, shared: set[int]) -> Tensor:
    """A gradient that can be changed in place (clipped, unscaled) without changing another.

    `x + y` passes one tensor on to both, or the cotangent that the caller gave.
    """
    if capturing() is None:
        return wrap(grad._data, grad._kind, grad._trace)
    # A capture knows values by their handles; an op there is a node, so only where it is needed.
    if id(grad) in shared:
        (mine,) = execute(StopGradient(), (grad,))
        mine._trace = grad._trace
        return mine
    shared.add(id(grad))
    return grad


class EarlyCallback(abc.ABC):
    """A callback that wants to know of gradients while others are still computed.

    What it is told is a hint: it is called with the same tensor and gradient in any case, later.
    """

    @abc.abstractmethod
    def notice(self, tensor: Tensor, grad: Tensor, /) -> None:
        """Take note of the gradient of a tensor, which is complete."""

    @abc.abstractmethod
    def __call__(self, tensor: Tensor, grad: Any, /) -> Any:
        """Return the gradient in place of `grad`, or None to keep it, as any callback does."""


def _notices(entries: list[_Attached]) -> Callable[[Any, Tensor], None] | None:
    """Return the function that takes a gradient as soon as it is there; None for none.

    Only the first callback gets gradients as they are computed.
    """
    early = [e for e in entries if e.callbacks and isinstance(e.callbacks[0], EarlyCallback)]
    if not early:
        return None
    of: dict[Any, list[tuple[Tensor, EarlyCallback]]] = {}
    for entry in early:
        tensor, callback = entry.tensor(), entry.callbacks[0]
        if tensor is not None and isinstance(callback, EarlyCallback):
            of.setdefault(entry.trace, []).append((tensor, callback))

    def notice(key: Any, grad: Tensor) -> None:
        for tensor, callback in of.get(key, ()):
            callback.notice(tensor, grad)

    return notice


def _walk(
    tape: Tape,
    nodes: list[TapeNode],
    seeds: dict[Any, Tensor],
    wanted: list[Any],
    notice: Callable[[Any, Tensor], None] | None,
) -> dict[Any, Tensor]:
    """Walk the nodes backwards; in anomaly mode look at what every rule returns."""
    steps = [node.step() for node in nodes]
    watch, tape.watch = tape.watch, None
    if watch is None:
        return backpropagate(steps, seeds, wanted, settled=notice)
    of = {id(step): node for step, node in zip(steps, nodes, strict=True)}
    try:
        return backpropagate(steps, seeds, wanted, lambda s, g: watch.gradient(of[id(s)], g))
    finally:
        tape.watch = watch


def _check_attachable(tensor: object) -> None:
    if not isinstance(tensor, Tensor) or not tensor._kind.dtype.is_float:
        advice = "make it one with treadle.tensor(data) or astype('float32')"
        if hasattr(tensor, "parameters"):
            advice = "attach its parameters: gm.attach(net.parameters())"
        elif isinstance(tensor, str):
            advice = "of a dict attach the values; of a network gm.attach(net.parameters())"
        problem = f"attach takes floating tensors, got {_described(tensor)}; {advice}"
        raise AssertionError(problem)


def _described(given: object) -> str:
    return str(given.type) if isinstance(given, Tensor) else type(given).__name__


def _seeds(y: Any, dy: Any) -> tuple[list[Tensor], list[Tensor]]:
    outputs = [] if y is None else [y] if isinstance(y, Tensor) else y
    if not isinstance(outputs, Sequence) or not all(isinstance(out, Tensor) for out in outputs):
        raise TypeError(
            f"backward takes a tensor or a list of tensors, got {_described(y)}; pass the loss "
            "itself, not loss.item() or loss.numpy()"
        )
    outputs = list(outputs)
    if dy is None:
        return outputs, [_ones_like(out) for out in outputs]
    cotangents = [dy] if isinstance(dy, Tensor) else list(dy)
    if len(cotangents) != len(outputs):
        raise ShapeError(
            "backward", f"{len(cotangents)} cotangents were given for {len(outputs)} outputs"
        )
    for out, given in zip(outputs, cotangents, strict=True):
        if out.shape != given.shape:
            raise ShapeError(
                "backward",
                "dy and y differ in shape",
                saw=f"y {out.type}, dy {given.type}",
                hint="pass one cotangent of the output's shape",
            )
    return outputs, cotangents


def _ones_like(x: Tensor) -> Tensor:
    return x.constant(np.ones(x.shape, x.dtype), x._kind.dtype)


def _zeros_like(x: Tensor) -> Tensor:
    return x.constant(np.zeros(x.shape, x.dtype), x._kind.dtype)


class GradManagerGroup:
    """Managers that start and stop recording together, at one depth; made by `gm1 | gm2`."""

    def __init__(self, managers: Iterable[GradManager]) -> None:
        self._managers = list(managers)

    def __or__(self, other: GradManager | GradManagerGroup) -> GradManagerGroup:
        more = other._managers if isinstance(other, GradManagerGroup) else [other]
        return GradManagerGroup([*self._managers, *more])

    def record(self) -> None:
        """Start recording all managers."""
        tape = current()
        depth = tape.depth + 1
        for manager in self._managers:
            tape.enter()
            manager._begin(depth)

    def release(self) -> None:
        """Stop recording all managers."""
        for manager in reversed(self._managers):
            manager.release()

    def __enter__(self) -> GradManagerGroup:
        self.record()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_BACKWARDING: list[GradManager | None] = [None]


def get_backwarding_grad_manager() -> GradManager | None:
    """The manager whose `backward` is running, for callbacks that need to know."""
    return _BACKWARDING[0]
