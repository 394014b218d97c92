"""Is this object a backend? Mistakes of plug-in authors, found when theirs is loaded."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.backends.api import PROTOCOL, Engine, Kernel

_KIND = re.compile("[a-z_]+")
_RUN = ("device", "outs", "ins", "attributes", "stream")
_SUPPORTS = ("op", "types")
_RESERVED = ("cpu", "multithread", "xpu")


def problems(backend: Any, *, built_in: bool = False) -> list[str]:
    """Everything that keeps an object from being a `Backend`, in words for its author."""
    if inspect.isclass(backend):
        return [f"the entry point names the class {backend.__name__}; name an instance of it"]
    found = [
        f"it has no attribute {attribute!r}"
        for attribute in ("name", "protocol")
        if getattr(backend, attribute, None) is None
    ]
    if not callable(getattr(backend, "probe", None)):
        found.append("it has no method probe()")
    found += _protocol_problems(getattr(backend, "protocol", None))
    found += _kind_problems(backend, built_in)
    return found + _pass_problems(getattr(backend, "passes", ()))


def _pass_problems(passes: Iterable[Any]) -> list[str]:
    return [
        f"its pass {p!r} is not a callable dataclass with a name"
        for p in passes
        if not (dataclasses.is_dataclass(p) and callable(p) and bool(getattr(p, "name", None)))
    ]


def _protocol_problems(protocol: Any) -> list[str]:
    numbers = isinstance(protocol, tuple) and [type(part) for part in protocol] == [int, int]
    if protocol is None or numbers:
        return []
    return [f"protocol is {protocol!r}; it must be a pair of ints such as (1, 0)"]


def _kind_problems(backend: Any, built_in: bool) -> list[str]:
    kinds = getattr(backend, "device_kinds", ())
    if not isinstance(kinds, tuple):
        return [f"device_kinds is {kinds!r}; it must be a tuple of names"]
    if kinds and not callable(getattr(backend, "open", None)):
        return ["it has no method open()"]
    wrong = [k for k in kinds if not isinstance(k, str) or _KIND.fullmatch(k) is None]
    taken = [] if built_in else [k for k in kinds if k in _RESERVED]
    return [f"the device kind {k!r} is not lower-case letters and underscores" for k in wrong] + [
        f"the device kind {k!r} is the framework's own" for k in taken
    ]


def newer_protocol(protocol: tuple[int, int]) -> str:
    """A remark about a backend that may count on what this version does not have yet."""
    if protocol[1] <= PROTOCOL[1]:
        return ""
    theirs, ours = ".".join(map(str, protocol)), ".".join(map(str, PROTOCOL))
    return f"was written for protocol {theirs}, this Treadle speaks {ours}; upgrade treadle"


def tiers(backend: Any, kernels: Sequence[Kernel]) -> list[str]:
    """Return the parts of a backend: memory, kernels, engines that run ops, compile, take segments,
    passes."""
    found = ["devices"] if getattr(backend, "device_kinds", ()) else []
    found += ["kernels"] if kernels else []
    if isinstance(backend, Engine):
        found += ["engine"]
    for method, tier in (("compiler", "programs"), ("compile_segment", "segments")):
        found += [tier] if callable(getattr(backend, method, None)) else []
    return found + (["passes"] if getattr(backend, "passes", ()) else [])


def op_count(backend: Any, kernels: Sequence[Kernel]) -> str:
    """Return for how many ops a backend has kernels; engines decide op by op, from the types."""
    if isinstance(backend, Engine):
        return f"all {len(_ops())}" if backend.priority == 0 else "when asked"
    return str(len({k.op for k in kernels} & _ops()))


def list_problems(backend: Any) -> list[str]:
    """Mistakes in `kernels` and the list that it gives, in words for the backend's author."""
    method = getattr(backend, "kernels", None)
    if method is None:
        return []
    if not callable(method):
        return [f"kernels is a {type(method).__name__}; it must be a method that returns it"]
    listed = method()
    if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
        return [f"kernels() returned {_kind_of(listed)}; {_WANTED}"]
    wrong = [one for one in listed if not isinstance(one, Kernel)]
    return (
        [f"kernels() must give Kernel objects, not {_kind_of(wrong[0])}; {_WANTED}"]
        if wrong
        else []
    )


_WANTED = "see treadle.backends.api.Kernel"


def _kind_of(given: Any) -> str:
    name = getattr(given, "__name__", "")
    return (
        f"{type(given).__name__} {name}" if name else f"an object of class {type(given).__name__}"
    )


def kernel_problems(kernels: Iterable[Kernel]) -> list[str]:
    """Kernels whose functions cannot be called the way they will be."""
    found = []
    for kernel in kernels:
        for part, expected in (("run", _RUN), ("supports", _SUPPORTS)):
            function = getattr(kernel, part)
            if not _takes(function, len(expected)):
                words = f"{part} of its kernel for {kernel.op} is {_told(function)}"
                found.append(f"{words}; expected {part}({', '.join(expected)})")
    return found


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*(None,) * count)
    except ValueError:  # Functions of libraries do not say what they take.
        return True
    except TypeError:
        return False
    return True


def _told(function: Any) -> str:
    if not callable(function):
        return f"{function!r}, which cannot be called"
    return f"{getattr(function, '__name__', repr(function))}{inspect.signature(function)}"


def unknown_kernels(kernels: Iterable[Kernel]) -> str:
    """Kernels for ops that do not exist, in words, with near names; "" if all do."""
    named = {kernel.op for kernel in kernels}
    if not named:
        return ""
    remarks = []
    for name in sorted(named - _ops()):
        near = difflib.get_close_matches(name, _ops(), n=1)
        remarks.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return f"it has kernels for ops that do not exist: {', '.join(remarks)}" if remarks else ""


def may_come(kernels: Iterable[Kernel], protocol: tuple[int, int]) -> bool:
    """Return whether ops that do not exist may do so elsewhere: in a later Treadle or another
    package.

    Ops of packages have a dot in their names, and are known once the package is imported.
    """
    unknown = {kernel.op for kernel in kernels} - _ops()
    return protocol[1] > PROTOCOL[1] or all("." in name for name in unknown)


def _ops() -> set[str]:
    """The names of all ops, which are imported for this: who runs compiled code needs none."""
    from treadle.ops import REGISTRY

    return set(REGISTRY)
