"""Is this object a backend? Mistakes of plug-in authors, found when theirs is loaded."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable
from typing import Any

from treadle.backends.api import Kernel
from treadle.ops.op import REGISTRY

_KIND = re.compile("[a-z_]+")
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
    return found


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


def unknown_kernels(kernels: Iterable[Kernel]) -> str:
    """A remark about kernels for ops that do not exist, with near names; "" if all do."""
    remarks = []
    for name in sorted({kernel.op for kernel in kernels} - set(REGISTRY)):
        near = difflib.get_close_matches(name, REGISTRY, n=1)
        remarks.append(f"{name} (did you mean {near[0]}?)" if near else name)
    return f"kernels for unknown ops are ignored: {', '.join(remarks)}" if remarks else ""
