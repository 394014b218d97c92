"""Names of the arguments of a module's `forward`, kept without the class it came from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from treadle.base.errors import TraceError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument; `default` counts only if `has_default`."""

    name: str
    kind: int
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True)
class ArgSpec:
    """The arguments of `forward`, without `self`."""

    parameters: tuple[Parameter, ...]

    @classmethod
    def of(cls, forward: Callable[..., Any]) -> ArgSpec:
        """The arguments of a bound method."""
        found = inspect.signature(forward).parameters.values()
        empty = inspect.Parameter.empty
        return cls(
            tuple(
                Parameter(p.name, int(p.kind), p.default is not empty)
                if p.default is empty
                else Parameter(p.name, int(p.kind), True, p.default)
                for p in found
            )
        )

    @cached_property
    def signature(self) -> inspect.Signature:
        """The same for `inspect`."""
        made = [
            inspect.Parameter(
                p.name,
                inspect._ParameterKind(p.kind),
                default=p.default if p.has_default else inspect.Parameter.empty,
            )
            for p in self.parameters
        ]
        return inspect.Signature(made)

    def bind(
        self, where: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The one spelling of a call: positional where possible, defaults filled in.

        Raises:
            TraceError: the arguments do not fit.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(p.name for p in self.parameters)
            raise TraceError(where, f"{error}", hint=f"its arguments are ({known})") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def names(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        """Return the names of the arguments of a call that `bind` made, in order."""
        positional = [p.name for p in self.parameters if p.kind in _POSITIONAL]
        rest = next((p.name for p in self.parameters if p.kind == 2), "arg")
        more = [f"{rest}_{i}" for i in range(len(args) - len(positional))]
        return [*positional[: len(args)], *more, *sorted(kwargs)]

    def with_positional(self, name: str) -> ArgSpec:
        """One positional argument more; nothing changes where any number is taken already."""
        if any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in self.parameters):
            return self
        before = [p for p in self.parameters if p.kind in _POSITIONAL]
        after = [p for p in self.parameters if p.kind not in _POSITIONAL]
        optional = any(p.has_default for p in before)
        new = Parameter(name, int(inspect.Parameter.POSITIONAL_OR_KEYWORD), optional)
        return ArgSpec((*before, new, *after))


def argspec_of(module: Any) -> ArgSpec:
    """Return the names of the arguments of a module's `forward`; a traced module remembers them."""
    held = vars(module).get("argspec")
    return held if isinstance(held, ArgSpec) else ArgSpec.of(module.forward)


def source_of(module: Any) -> str:
    """The name of the class a module was written as, which a traced module remembers."""
    held = vars(module).get("_source")
    return held if isinstance(held, str) and held else type(module).__name__
