"""`make_allreduce_cb`: gradients reduced over a group while others are still computed."""

from __future__ import annotations

import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.autodiff.grad_manager import EarlyCallback, get_backwarding_grad_manager
from treadle.base.modes import LOCAL
from treadle.distributed import carrying
from treadle.distributed.group import WORLD, Group, check_backend, memory
from treadle.distributed.helper import TensorFuture, kind_of, pack_allreduce_split
from treadle.engine.eager.dispatch import EagerType
from treadle.ops.collective import AllReduce
from treadle.runtime.comm import buckets, groups
from treadle.runtime.comm.api import Handle
from treadle.runtime.comm.buckets import Reductions
from treadle.tensor import Tensor, wrap

__all__ = ["AllreduceCallback", "make_allreduce_cb"]

_MOST = 10 << 20
"""Bytes of gradients that are reduced together where nothing is planned; MegEngine's number."""
_MOST_PLANS = 16
_Name = tuple[str, EagerType]
"""Key of gradients that share a named bucket."""
BucketOf = Callable[[Tensor], str]
"""Names the bucket of a parameter's gradient."""


def make_allreduce_cb(
    reduce_method: str,
    group: Group = WORLD,
    backend: str | None = None,
    *,
    bucket_of: BucketOf | None = None,
    reductions: Reductions = "auto",
) -> AllreduceCallback:
    """A callback for `GradManager.attach` that reduces gradients over a group.

    Gradients of one dtype are packed into buckets, which are reduced in the background while
    backward goes on. The first backward fills them up to 10 MiB and takes the time; buckets are
    then planned for the order in which gradients become ready. In a compiled function the
    reductions are ops of the program, and `jit.Options(reductions=...)` says how they are cut.

    Args:
        reduce_method: "sum" or "mean".
        group: the ranks whose gradients meet; they attach the same parameters in the same order.
        backend: a name of `override_backend`; the current one if None.
        bucket_of: names the bucket of a parameter's gradient: those of one name travel together,
            one message for each dtype, and no others with them; "" leaves that to `reductions`.
            The same on all ranks.
        reductions: how the others share buckets outside of compiled functions, as in
            `jit.Options`: "auto" plans, a number of bytes fills each, `(10, 40)` ends buckets after
            so many gradients, `(0.7, 0.3)` has their shares of all bytes, "off": each alone.

    Raises:
        AssertionError: outside of a group, or for another method.
        ValueError: there is no such backend, or no such way to share buckets.
    """
    return AllreduceCallback(reduce_method, group, backend, bucket_of, reductions)


class AllreduceCallback(EarlyCallback):
    """Callback made by `make_allreduce_cb`; MegEngine's name."""

    def __init__(
        self,
        reduce_method: str,
        group: Group = WORLD,
        backend: str | None = None,
        bucket_of: BucketOf | None = None,
        reductions: Reductions = "auto",
    ) -> None:
        self._kind = kind_of(reduce_method)
        group.communicator()
        if backend is not None:
            check_backend(backend)
        if problem := buckets.problem_of(reductions):
            raise ValueError(f"reductions={reductions!r}: {problem}")
        self._bucket_of, self._reductions = bucket_of, reductions
        self._group = group
        self._managers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._bucket = _Bucket(group, self._kind)
        self._going: deque[_Bucket] = deque()
        self._early: dict[int, tuple[Tensor, TensorFuture]] = {}
        self._seen: list[_Seen] = []
        self._plan = _BucketPlan(reductions)
        self._named: dict[_Name, _Bucket] = {}
        self._members: Counter[_Name] = Counter()
        self._counts: Counter[_Name] = Counter()
        self._losses = groups.losses()

    def notice(self, param: Tensor, grad: Tensor) -> None:
        """Put a gradient into its bucket as soon as it is computed, while backward goes on."""
        if self._losses != groups.losses():
            self._forget()
        if LOCAL.hook is None and _is_at_hand(grad) and self._group.size > 1:
            self._early[id(param)] = grad, self._add(grad, self._name_of(param))
            while self._going and self._going[0].is_over():
                self._going.popleft()  # MPI moves messages on while it is being asked.

    def __call__(self, param: Tensor, grad: Tensor) -> TensorFuture:
        """The future of a gradient's reduction, which is there after the backward."""
        if self._losses != groups.losses():
            self._forget()
        if self._group.size == 1:
            return _ready(grad)
        own = grad._kind.device.on_host or carrying.carries(self._group.name)
        if LOCAL.capture is not None and own:  # The engine puts reductions into buckets.
            op = AllReduce(*self._group.joined(), self._kind, self._name_of(param))
            return _ready(op(grad))
        manager = get_backwarding_grad_manager()
        if manager is not None and manager not in self._managers:
            manager._register_after_backward_callback(self.flush)
            self._managers.add(manager)
        noticed, future = self._early.pop(id(param), (None, None))
        if future is None or noticed is not grad:  # The other one is of a backward that failed.
            future = self._add(grad, self._name_of(param))
        if manager is None:
            self.flush()
        return future

    def flush(self) -> None:
        """Start reducing what is collected; at the end of a backward, plan the next ones."""
        self._start()
        self._flush_named()
        seen, self._seen = self._seen, []
        if not self._plan.recall(seen):
            for bucket in self._going:
                bucket.wait()
            self._plan.learn(seen, self._group)
        self._going.clear()
        self._early.clear()

    def _forget(self) -> None:
        """Forget what was under way and what was planned for, after ranks were lost."""
        self._bucket = _Bucket(self._group, self._kind)
        self._going.clear()
        self._early.clear()
        self._seen.clear()
        self._named.clear()
        self._counts.clear()
        self._plan, self._losses = _BucketPlan(self._reductions), groups.losses()

    def _name_of(self, param: Tensor) -> str:
        return "" if self._bucket_of is None else self._bucket_of(param)

    def _add_named(self, grad: Tensor, name: str) -> TensorFuture:
        """Add a gradient to its name's bucket, which begins with as many as the last time."""
        key = name, grad._kind
        if key not in self._named:
            self._named[key] = _Bucket(self._group, self._kind, name)
        future = self._named[key].add(grad)
        self._counts[key] += 1
        if self._counts[key] == self._members[key]:
            self._begin(self._named.pop(key))
        return future

    def _begin(self, bucket: _Bucket) -> None:
        bucket.start()
        self._going.append(bucket)

    def _flush_named(self) -> None:
        for bucket in self._named.values():
            self._begin(bucket)
        self._named.clear()
        self._members, self._counts = self._counts, Counter()

    def _add(self, grad: Tensor, name: str) -> TensorFuture:
        if name:
            return self._add_named(grad, name)
        seen = _Seen(time.perf_counter(), grad.size * grad.dtype.itemsize, grad._kind)
        if self._bucket.holds_others_than(grad):
            self._start()
        future = self._bucket.add(grad)
        self._seen.append(seen)
        if self._plan.ends(self._seen, self._bucket.nbytes):
            self._start()
        return future

    def _start(self) -> None:
        bucket, self._bucket = self._bucket, _Bucket(self._group, self._kind)
        if bucket.nbytes or bucket.holds_any:
            self._begin(bucket)


def _ready(value: Tensor) -> TensorFuture:
    future = TensorFuture(False)
    future.set(value)
    return future


def _is_at_hand(grad: Tensor) -> bool:
    """Return whether the gradient is an array of the host, and no value of a program to come."""
    return grad._kind.device.on_host and LOCAL.capture is None


class _Seen:
    """One gradient: when it was there, its bytes, element type and device."""

    __slots__ = ("kind", "nbytes", "when")

    def __init__(self, when: float, nbytes: int, kind: Any) -> None:
        self.when, self.nbytes, self.kind = when, nbytes, kind


class _BucketPlan:
    """After how many gradients a bucket ends, as planned for gradients like those of last time.

    Plans hold as long as gradients come in the same order and sizes; those of earlier orders are
    kept. The first rank's times decide for all.
    """

    def __init__(self, how: Reductions) -> None:
        self._how = how
        self._known: dict[Any, frozenset[int]] = {}
        self._ends: frozenset[int] | None = None

    def ends(self, seen: list[_Seen], nbytes: int) -> bool:
        """Return whether the bucket of the gradient seen last, of so many bytes, is complete."""
        if self._ends is not None:
            return len(seen) in self._ends
        if isinstance(self._how, tuple) and len(seen) in self._how:
            return True
        most = self._how if isinstance(self._how, int) else _MOST
        return self._how == "off" or nbytes >= most

    def recall(self, seen: list[_Seen]) -> bool:
        """Take the plan for gradients like these; whether there is one."""
        if not seen or LOCAL.capture is not None:
            return True
        self._ends = self._known.get(_sizes(seen))
        return self._ends is not None

    def learn(self, seen: list[_Seen], group: Group) -> None:
        """Plan for gradients like these, together with all ranks."""
        comm, sizes = group.communicator(), _sizes(seen)
        planned = self._how == "auto"
        link = buckets.link_of(comm, memory) if planned else buckets.ReductionCost(0.0, 0.0)
        ready = [s.when - seen[0].when for s in seen]
        nbytes, kinds = [n for n, _ in sizes], [k for _, k in sizes]
        found = buckets.ends(self._how, ready, nbytes, kinds, link)
        if planned:  # The other ways give all ranks the same.
            found = comm.broadcast_value(found, 0)
        if len(self._known) >= _MOST_PLANS:
            self._known.clear()
        self._ends = self._known[sizes] = frozenset(found)


def _sizes(seen: list[_Seen]) -> tuple[tuple[int, str], ...]:
    return tuple([(s.nbytes, s.kind.dtype.name) for s in seen])


class _Bucket:
    """Gradients of one dtype and device that are reduced together."""

    def __init__(self, group: Group, kind: str, name: str = "") -> None:
        self.nbytes = 0
        self._group, self._kind, self._name = group, kind, name
        self._grads: list[Tensor] = []
        self._futures: list[TensorFuture] = []
        self._handle: Handle | None = None

    @property
    def holds_any(self) -> bool:
        """True if a gradient is in it, be it an empty one."""
        return bool(self._grads)

    def holds_others_than(self, grad: Tensor) -> bool:
        """Return whether what is in it has another dtype or device."""
        return bool(self._grads) and self._grads[0]._kind is not grad._kind

    def add(self, grad: Tensor) -> TensorFuture:
        """Put a gradient in; its reduction comes out of the future."""
        self._grads.append(grad)
        self._futures.append(TensorFuture(False, self._finish))
        self.nbytes += grad.size * grad.dtype.itemsize
        return self._futures[-1]

    def start(self) -> None:
        """Reduce: in the background if values are at hand, else by ops that others record."""
        if LOCAL.hook is None and all(map(_is_at_hand, self._grads)):
            parts = [g._data.reshape(-1) for g in self._grads]
            size = sum(g.size for g in self._grads)
            packed = np.concatenate(parts, out=memory((size,), parts[0].dtype))
            comm, kind = self._group.communicator(), self._kind
            named = None
            if self._name:  # Told to others, who may have given the name to something else.
                what = f"all_reduce {kind} {packed.dtype}[{size}] of bucket {self._name!r}"
                named = comm.announce(f"{what}, not waited for")
            self._handle = comm.start_all_reduce(packed, kind, named)
            return
        shapes = [g.shape for g in self._grads]
        made = pack_allreduce_split(self._grads, shapes, self._group, self._kind)
        for future, reduced in zip(self._futures, made, strict=True):
            future.set(reduced)

    def is_over(self) -> bool:
        """Return whether the reduction is; asking moves it on."""
        return self._handle is None or self._handle.done()

    def wait(self) -> None:
        """Wait until all futures hold their results."""
        if self._handle is not None:
            self._finish()

    def _finish(self) -> None:
        if self._handle is None:
            raise RuntimeError("the gradients are still being collected: call flush()")
        total, at = self._handle.wait(), 0
        for grad, future in zip(self._grads, self._futures, strict=True):
            # Results do not share memory: one that stays must not keep the whole bucket.
            part = total[at : at + grad.size].reshape(grad.shape).copy()
            future.set(wrap(part, grad._kind))
            at += grad.size
