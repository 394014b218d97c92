"""Options of a compilation: one frozen value that every stage reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NoReturn

from treadle.backends import registry
from treadle.base.env import CHECK, ENGINES, FORCE_FALLBACK, FUSION_SWITCH, Variable
from treadle.base.errors import GraphError
from treadle.engine.fusion_switch import switched_off
from treadle.runtime.comm.buckets import Reductions, problem_of


def _names(variable: Variable) -> tuple[str, ...]:
    return tuple(name.strip() for name in variable.get().split(",") if name.strip())


_PREFERRED: ContextVar[tuple[str, ...]] = ContextVar("engines")


@contextmanager
def engines(*names: str) -> Iterator[None]:
    """Use these engines, best first, for functions compiled or traced and models loaded inside.

    That is, options made inside have these names, unless they are given others.
    """
    token = _PREFERRED.set(names)
    try:
        yield
    finally:
        _PREFERRED.reset(token)


def _preferred() -> tuple[str, ...]:
    return _PREFERRED.get(()) or _names(ENGINES)


PASSES = (
    "canonicalize", "cse", "dce", "expand", "find_attention", "fold", "fold_control",
    "fold_scales", "fuse", "fuse_reductions", "fuse_transposes", "integers", "join_scans", "layout",
    "precompute", "prepack", "propagate", "reductions", "simplify", "statistics", "together",
    "winograd",
)  # fmt: skip
"""Names that `disabled` may have, besides passes of backends, whose names have a dot or are
registered (`graph.passes.register`)."""


class Sharing:
    """True if values share memory where options do not say: `config` has a switch for it."""

    on = True


class Converting:
    """True if maps may be held in other orders of axes than row-major, likewise."""

    on = True


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one compilation; equal options and equal graphs give equal programs.

    Attributes:
        level: 0 runs every op as it stands, 1 simplifies and fuses what is plainly better,
            2 chooses fusions by modelled cost, 3 also spends time on what rarely pays.
        fast: allow rewrites that hold in real arithmetic only (another order of summation).
        reuse_memory: values that do not live at the same time may share memory. False by default
            while `config.disable_memory_forwarding` is set.
        fusion: make groups of ops; without it every op is a kernel of its own.
        disabled: names of passes that are left out.
        engines: engines to choose from, best first; empty means all that serve the device. The
            reference engine runs what they refuse, named or not.
            One that compiles segments takes part only where it is named here. Taken from
            the block of `engines(...)` around, or TREADLE_ENGINES where that is set.
        strict_segments: a segment that its engine fails to compile or to run is an error; by
            default, other engines run it, with a warning.
        force_fallback: names of ops that the reference engine runs, whoever else could. Ops are
            those of the prepared graph. Taken from TREADLE_FORCE_FALLBACK where it is set.
        fusion_switch: path of a file that turns rewrites and kinds of groups off, by name (see
            `engine.fusion_switch`). Taken from TREADLE_FUSION_SWITCH where it is set.
        winograd: Winograd's algorithm for 3x3 convolutions in tiles of at most so many results per
            axis, 2 or 4, where that is modelled to be faster; 0 computes all of them directly.
        layouts: names of the orders of axes that maps may be held in besides row-major, such as
            "channels-last" and "blocked", whichever is modelled to be the fastest where; empty:
            those that the target prefers. "row-major", and so no other, by default while
            `config._auto_format_convert` is False.
        memory_budget: bytes that values between inputs and outputs may take at once; where they
            would take more, some are made again instead of being kept. 0: no limit.
        strict_budget: a budget that cannot be kept is an error, not a wish.
        streams: how many streams steps may be spread over, where that is predicted to pay.
        reductions: how all-reductions of gradients share messages in programs of the host: "auto"
            plans buckets for the times at which gradients are there, a number fills each up to so
            many bytes, a tuple of whole numbers ends one after so many gradients, in the order in
            which they are there, one of fractions has the buckets' shares of all bytes. Those that
            name a bucket travel in that. "off": each travels alone, and is waited for where it
            stands.
        check: verify the graph after every pass, and the plan of memory; between stages the graph
            is verified in any case. On where the environment sets TREADLE_CHECK=1.
        switched_off: what the file of `fusion_switch` turned off when these options were made.
    """

    level: int = 2
    fast: bool = False
    reuse_memory: bool = field(default_factory=lambda: Sharing.on)
    fusion: bool = True
    disabled: tuple[str, ...] = ()
    engines: tuple[str, ...] = field(default_factory=_preferred)
    strict_segments: bool = False
    force_fallback: tuple[str, ...] = field(default_factory=lambda: _names(FORCE_FALLBACK))
    fusion_switch: str = field(default_factory=FUSION_SWITCH.get)
    winograd: int = 4
    layouts: tuple[str, ...] = field(
        default_factory=lambda: () if Converting.on else ("row-major",)
    )
    memory_budget: int = 0
    strict_budget: bool = True
    streams: int = 1
    reductions: Reductions = "auto"
    check: bool = field(default_factory=lambda: CHECK.get() == "1")
    switched_off: tuple[str, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        """Refuse what is not a value of an option.

        Raises:
            GraphError: a value is of another type or out of range, or names an unknown pass or
                engine.
        """
        _check_types(self)
        if self.level not in (0, 1, 2, 3):
            raise GraphError(
                "options", f"there is no optimization level {self.level}", hint="use 0, 1, 2 or 3"
            )
        if self.streams < 1:
            raise GraphError("options", f"{self.streams} streams", hint="there is at least one")
        if self.memory_budget < 0:
            raise GraphError("options", f"a budget of {self.memory_budget} bytes", hint="0: none")
        if problem := problem_of(self.reductions):
            raise GraphError(
                "options",
                f"reductions={self.reductions!r}: {problem}",
                hint='use "auto", "off", a number of bytes, or a tuple: (10, 40) ends buckets '
                "after so many gradients, (0.7, 0.3) has their shares of all bytes",
            )
        if self.winograd not in (0, 2, 4):
            raise GraphError(
                "options", f"there are no tiles of {self.winograd}", hint="winograd is 0, 2 or 4"
            )
        # Read now, so that options, which name a program in the cache, say what they turn off.
        object.__setattr__(self, "switched_off", switched_off(self.fusion_switch))

    def allows(self, name: str, level: int = 0) -> bool:
        """Return whether a pass of this name, which starts at `level`, is to run."""
        return self.level >= level and name not in self.disabled and self.fuses(name)

    def fuses(self, name: str) -> bool:
        """Return whether the fusion switch leaves a rule, pass or kind of group on."""
        return name not in self.switched_off


_NEEDED = {"check_ranges", "drop_markers"}
"""Passes that no program can do without."""
_KINDS = {"bool": bool, "int": int, "str": str}


def _check_types(options: Options) -> None:
    """Raise `GraphError` where an option has a value of another type, or names no pass."""
    for entry in fields(options):
        value, kind = getattr(options, entry.name), _KINDS.get(str(entry.type))
        if kind is not None and type(value) is not kind:
            raise GraphError(
                "options",
                f"{entry.name}={value!r} is not of type {kind.__name__}",
                hint="use True or False" if kind is bool else f"give a value of type {entry.type}",
            )
        if entry.type == "tuple[str, ...]" and not (
            isinstance(value, tuple) and all(isinstance(v, str) for v in value)
        ):
            wanted = f'{entry.name}=("{value}",)' if isinstance(value, str) else "a tuple of names"
            raise GraphError("options", f"{entry.name} takes a tuple, not {value!r}", hint=wanted)
    registered: Any = sys.modules.get("treadle.graph.passes")
    passes = {*PASSES, *(() if registered is None else registered.PASSES)} - _NEEDED
    wrong = [name for name in options.disabled if name not in passes and "." not in name]
    if wrong:
        _refuse(f"there is no pass {wrong[0]!r} to leave out", wrong[0], "passes", sorted(passes))
    known = registry.engine_names("cpu") if options.engines else []
    for name in options.engines:
        if name not in known:
            _refuse(f"no engine is called {name!r}", name, "engines", known)


def _refuse(problem: str, name: str, kind: str, known: Sequence[str]) -> NoReturn:
    near = get_close_matches(name, known, 1)
    raise GraphError(
        "options",
        problem,
        saw=f"{kind}: {', '.join(known)}",
        hint=f"did you mean {near[0]!r}?" if near else "name one of these",
    )
