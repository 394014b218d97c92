"""`autocast`, and the switches of the whole process."""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from treadle.amp.precision import Precision, precision
from treadle.base.modes import casting, pop_casting, push_casting, set_default_casting

P = ParamSpec("P")
R = TypeVar("R")


class autocast:
    """Mixed precision inside a block, or as a decorator inside a function; for this thread.

    Matrix products, convolutions and attention take their operands, biases included, in the low
    type. Exponentials, logarithms, divisions, powers, normalizations over one sample and losses
    take theirs in the high type; batch normalization takes its image in the low one and the rest
    in the high one. All else keeps what it is given. Parameters, their gradients and optimizers
    stay in float32. Contractions accumulate in float32.

    Args:
        enabled: False does nothing, and leaves a block around this one as it is.
        low_prec_dtype: "float16", or "bfloat16", which has float32's range.
        high_prec_dtype: "float32".

    Raises:
        DTypeError: the types are not floats of 16 and of more bits.

    Example:
        >>> import treadle as mge
        >>> import treadle.functional as F
        >>> x = F.ones((2, 3))
        >>> with mge.amp.autocast(low_prec_dtype="bfloat16"):
        ...     y = F.matmul(x, x.T)
        ...     z = F.exp(y)
        >>> y.dtype.name, z.dtype.name
        ('bfloat16', 'float32')
    """

    def __init__(
        self,
        enabled: bool = True,
        low_prec_dtype: str = "float16",
        high_prec_dtype: str = "float32",
    ) -> None:
        self.enabled = enabled
        self.low_prec_dtype = low_prec_dtype
        self.high_prec_dtype = high_prec_dtype
        self._rule = precision(low_prec_dtype, high_prec_dtype)

    def __enter__(self) -> None:
        push_casting(self._rule if self.enabled else casting())

    def __exit__(self, *_: object) -> None:
        pop_casting()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, which casts while it runs."""

        @functools.wraps(function)
        def cast(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return cast


class _Defaults:
    """Casting of threads that are in no `autocast` block."""

    enabled = False
    low = "float16"
    high = "float32"

    @classmethod
    def change(
        cls, *, enabled: bool | None = None, low: str | None = None, high: str | None = None
    ) -> None:
        """Change some of them."""
        on = cls.enabled if enabled is None else bool(enabled)
        rule = precision(low or cls.low, high or cls.high)
        cls.enabled, cls.low, cls.high = on, rule.low.name, rule.high.name
        set_default_casting(rule if on else None)


def _present() -> Precision:
    """The rule of this thread, or the one that `amp.enabled = True` would set."""
    rule = casting()
    return rule if isinstance(rule, Precision) else precision(_Defaults.low, _Defaults.high)


class AmpModule(types.ModuleType):
    """The module `treadle.amp`, some of whose attributes are switches of the process."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Programs that are sent to other processes refer to this module as to any other.
        return importlib.import_module, (self.__name__,)

    @property
    def enabled(self) -> bool:
        """True if this thread casts; setting it switches all threads that are in no block."""
        return casting() is not None

    @enabled.setter
    def enabled(self, value: bool) -> None:
        _Defaults.change(enabled=value)

    _enabled = enabled

    @property
    def low_prec_dtype(self) -> str:
        """Name of the type of few bits; setting it is for all threads that are in no block."""
        return _present().low.name

    @low_prec_dtype.setter
    def low_prec_dtype(self, value: str) -> None:
        _Defaults.change(low=value)

    @property
    def high_prec_dtype(self) -> str:
        """Name of the type of many bits; setting it is for all threads that are in no block."""
        return _present().high.name

    @high_prec_dtype.setter
    def high_prec_dtype(self, value: str) -> None:
        _Defaults.change(high=value)

    # The names that MegEngine's own code goes by.
    _enabled = enabled
    _low_prec_dtype = low_prec_dtype
    _high_prec_dtype = high_prec_dtype
