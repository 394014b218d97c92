"""User-defined gradients."""

from __future__ import annotations

import copy
from typing import Any

from treadle.autodiff.tape import Tape, need_tape, no_grad
from treadle.base.errors import AutodiffError, NoGradient
from treadle.base.modes import LOCAL
from treadle.ops.op import Pullback
from treadle.tensor import Tensor, wrap


class Function:
    """An operation whose gradient the user writes.

    Subclasses define `forward(*tensors)`, which returns a tensor or a tuple and may keep what it
    needs on `self`, and `backward(*dys)`, which returns one gradient (or None) per input. Ops
    inside `forward` are not recorded. `backward` gets None for outputs nobody used.

    Example:
        >>> import treadle as mge
        >>> class Double(mge.autodiff.Function):
        ...     def forward(self, x):
        ...         return x * 2
        ...
        ...     def backward(self, dy):
        ...         return dy * 2
        >>> print(Double()(mge.tensor([1.0, 2.0])))
        Tensor([2. 4.], device=xpux:0)
    """

    def forward(self, *inputs: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError("a Function defines forward")

    def backward(self, *output_grads: Any) -> Any:
        """Compute the gradient of every input."""
        raise NotImplementedError("a Function defines backward")

    def __call__(self, *inputs: Any) -> Any:
        """Run `forward` on tensors and record it as one op.

        Raises:
            TypeError: an argument is not a tensor.
        """
        for x in inputs:
            if not isinstance(x, Tensor):
                raise TypeError(
                    f"op {type(self).__name__} expect type Tensor as inputs, got "
                    f"{type(x).__name__}: it takes positional tensors only"
                )
        hook = LOCAL.hook
        need_tape()
        call = copy.copy(self)
        with no_grad():
            results = call.forward(*inputs)
        self.__dict__.update(call.__dict__)
        several = results if isinstance(results, tuple) else (results,)
        # A result may be an input or a kept tensor: the traced handle must be one of its own.
        fresh = tuple(wrap(r._data, r._kind) for r in several)
        if isinstance(hook, Tape) and any(x._trace is not None for x in inputs):
            hook.record(_FunctionRule(call, len(inputs)), inputs, fresh)
        return fresh if isinstance(results, tuple) else fresh[0]


class _FunctionRule:
    """Presents one call of a `Function` to backward as if it were an op."""

    __slots__ = ("call", "n_inputs")

    def __init__(self, call: Function, n_inputs: int) -> None:
        self.call = call
        self.n_inputs = n_inputs

    @property
    def name(self) -> str:
        return type(self.call).__name__

    def vjp(self, at: Pullback[Tensor], /) -> tuple[Tensor | None, ...]:
        grads = self.call.backward(*at.dys)
        several = grads if isinstance(grads, (tuple, list)) else (grads,)
        if any(grad is not None for grad in several[self.n_inputs :]):
            raise AutodiffError(
                self.name, f"backward returned {len(several)} gradients for {self.n_inputs} inputs"
            )
        for grad in several:
            if grad is not None and not isinstance(grad, Tensor):
                raise NoGradient(self.name, f"backward returned a {type(grad).__name__}")
        return (*several[: self.n_inputs], *[None] * (self.n_inputs - len(several)))
