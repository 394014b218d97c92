"""`jit.print` and `jit.breakpoint`: values shown while a program runs, wherever it runs."""

from __future__ import annotations

import string
import sys
from collections.abc import Sequence
from typing import Any

from treadle.base.log import get_logger
from treadle.base.modes import LOCAL
from treadle.engine.devices.names import default_device
from treadle.graph.ir import Graph
from treadle.graph.silent import observers, silent
from treadle.jit.capture import Capture
from treadle.ops.printing import Pause, Print, PrintingOp
from treadle.runtime.array import to_host
from treadle.tensor import Tensor


def print(fmt: Any = "", /, *values: Any, **named: Any) -> None:
    """Print values each time the program passes here, in program order.

    In a compiled or traced function Python's `print` runs once, when the function is captured,
    and sees no values. This one is a step of the program: it is never dropped or moved before
    another print, prints at every turn of a loop, and once for a forward whose gradient is taken.
    Outside of such functions it prints at once.

    Args:
        fmt: a format string as for `str.format`: `jit.print("loss {:.3f}", loss)`. Text without
            fields is followed by the values, as with `tf.print` and Python's `print`; so is
            anything that is not text.
        values, named: what its fields mean. Tensors of any shape and type are printed with the
            values they have when the program runs; a format such as `{:.3f}` applies to every
            element. Anything else is printed as it is when the function is captured.

    Raises:
        ValueError, IndexError, KeyError: the format is malformed, or misses a value.
        DTypeError: a format does not fit the element type of its tensor.

    Example:
        >>> import treadle as mge
        >>> @mge.jit.compile
        ... def step(x):
        ...     total = x.sum()
        ...     mge.jit.print("total {:.1f}, shape {}", total, x.shape)
        ...     return total * 2
        >>> twice = step(mge.tensor([1.0, 2.0]))
        total 3.0, shape (2,)
    """
    template, shown = _prepared(fmt, values, named)
    _observe(Print(template), shown)


def breakpoint(*values: Tensor, **named: Tensor) -> None:
    """Open Python's debugger each time the program passes here.

    The debugger shows the line of this call, and has tensors by name, as NumPy arrays: those given
    or else all tensors among the local variables of the caller. `c` goes on, `q` ends the run
    with `bdb.BdbQuit`. As everywhere, `PYTHONBREAKPOINT` chooses another debugger, or none (0).

    Args:
        values: tensors; each goes by the name of a local variable that holds it, or `value_0`.
        named: tensors by name.

    Raises:
        TypeError: a value is not a tensor.
    """
    frame = sys._getframe(1)
    around = {k: v for k, v in frame.f_locals.items() if isinstance(v, Tensor) and k.isidentifier()}
    chosen = dict(around) if not values and not named else {}
    for i, value in enumerate(values):
        name = next((k for k, v in around.items() if v is value), f"value_{i}")
        chosen[name] = value
    chosen.update(named)
    for name, value in chosen.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"jit.breakpoint: {name} is not a tensor but {type(value).__name__}")
    op = Pause(",".join(chosen), frame.f_code.co_filename, frame.f_lineno)
    _observe(op, list(chosen.values()))


def without_prints(graph: Graph, name: str) -> Graph:
    """The graph for a file: prints and places for a debugger stay behind, and the log says so."""
    found = observers(graph)
    if not found:
        return graph
    lines = ", ".join(dict.fromkeys(str(n.loc) for n in found))
    get_logger().warning(
        "%s: jit.print and jit.breakpoint are not written into the file: %s", name, lines
    )
    return silent(graph)


def _observe(op: PrintingOp, tensors: list[Tensor]) -> None:
    """Make it a step of the program that is captured, or do it now.

    Neither a tape nor mixed precision sees it: its tensors are looked at as they are.
    """
    capture = LOCAL.capture
    if not isinstance(capture, Capture):
        op.infer(*[t.type for t in tensors])
        op.reference(*[to_host(t._data) for t in tensors])
    elif tensors:
        here = tensors[0].device
        capture.apply(op, tuple([t if t.device == here else t.to(here) for t in tensors]))
    else:
        capture.create(op, default_device())


# -- formats -----------------------------------------------------------------------------------


def _prepared(fmt: Any, values: Sequence[Any], named: dict[str, Any]) -> tuple[str, list[Tensor]]:
    """A template with one plain field per tensor, and the tensors in the order of the fields."""
    parts = list(string.Formatter().parse(fmt)) if isinstance(fmt, str) else []
    if all(field is None for _, field, _, _ in parts):
        if named:
            raise KeyError(f"jit.print: no field of the format is named {next(iter(named))!r}")
        text = "".join(literal for literal, *_ in parts)
        first = [text] if isinstance(fmt, str) else [fmt]
        return _join([*first, *values] if values or first != [""] else [])
    made, shown = _Fields(), []
    template = ""
    for literal, field, spec, conversion in parts:
        template += _escaped(literal)
        if field is None:
            continue
        found = made.found(field, values, named)
        wanted = made.spec(spec or "", values, named)
        if isinstance(found, Tensor):
            shown.append(found)
            template += "{" + (f"!{conversion}" if conversion else "")
            template += (f":{wanted}" if wanted else "") + "}"
        else:
            template += _escaped(format(made.convert_field(found, conversion), wanted))
    made.check_all_used(values, named)
    return template, shown


class _Fields(string.Formatter):
    """Looks fields up and keeps in mind which values were asked for."""

    def __init__(self) -> None:
        self._used: set[int | str] = set()
        self._next = 0

    def found(self, field: str, values: Sequence[Any], named: dict[str, Any]) -> Any:
        """The value of a field, attributes and items of it included."""
        if not field or field[0] in ".[":
            field, self._next = f"{self._next}{field}", self._next + 1
        found, first = self.get_field(field, values, named)
        self._used.add(first)
        return found

    def spec(self, text: str, values: Sequence[Any], named: dict[str, Any]) -> str:
        """A format with the values of the fields in it, such as `>{width}`."""
        made = ""
        for literal, field, inner, _ in self.parse(text):
            value = "" if field is None else self.found(field, values, named)
            made += literal + format(value, inner or "")
        return made

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Any) -> Any:
        """A value by its number or name."""
        self._used.add(key)
        if isinstance(key, int) and key >= len(args):
            raise IndexError(f"jit.print: the format has more fields than the {len(args)} values")
        if isinstance(key, str) and key not in kwargs:
            raise KeyError(f"jit.print: the format names {key!r}, which is not given")
        return super().get_value(key, args, kwargs)

    def check_all_used(self, values: Sequence[Any], named: Any) -> None:
        """Raise for values that no field shows, which is a slip more often than not."""
        left = [i for i in range(len(values)) if i not in self._used]
        left_named = [k for k in named if k not in self._used]
        if left or left_named:
            raise ValueError(
                f"jit.print: no field of the format shows value {(left + left_named)[0]}"
            )


def _join(values: Sequence[Any]) -> tuple[str, list[Tensor]]:
    """Values with blanks between them."""
    parts = ["{}" if isinstance(v, Tensor) else _escaped(str(v)) for v in values]
    return " ".join(parts), [v for v in values if isinstance(v, Tensor)]


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


__all__: list[str] = []  # A star import must not take Python's own print and breakpoint away.
