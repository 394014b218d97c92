"""Choice of who runs an op: engines on the host; on a device kernels, generated code, or else the
host.

The order is fixed: what the user forces, the device's kernels by priority, engines that generate
code for the device, the host's engines. Whoever refuses says why, and `Decision` keeps it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from treadle.backends import registry
from treadle.backends.api import Engine, Kernel, Support, no
from treadle.base.env import TRACE_DISPATCH
from treadle.base.errors import CompileError, EngineError, TreadleError, UnsupportedOp
from treadle.base.log import get_logger
from treadle.base.process import RUNTIME
from treadle.base.types import TensorType
from treadle.engine.eager.forced import HOST, forced
from treadle.ops.index_numpy import check_indices
from treadle.ops.op import Op, as_tuple

Launch = Callable[..., Any]
Refusal = tuple[str, Support]
"""An engine or kernel that was asked, and its answer."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision on who runs an op on operands of some types, and why those asked before do not.

    Attributes:
        op, types, device: what was asked for; the device by its logical name.
        runner: an engine's name, or on a device `"kernel"` or `"host"`.
        refusals: who was asked before, and the answers.
        implementation: the kernel's name; for what runs on the host, the engine's.
        forced: who forces this choice; "" where nobody does.
        purpose: what it runs for, as "operand y of add"; "" for an op that was called.
        before: decisions on ops that run first, which broadcast operands for the kernel.
    """

    op: Op
    types: tuple[TensorType, ...]
    device: str
    runner: str
    refusals: tuple[Refusal, ...] = ()
    implementation: str = ""
    forced: str = ""
    purpose: str = ""
    before: tuple[Decision, ...] = ()

    @property
    def subject(self) -> str:
        """Name of the op, with its purpose."""
        return f"{self.op.name} ({self.purpose})" if self.purpose else self.op.name

    @property
    def winner(self) -> str:
        """Name of who runs it, in words."""
        if self.runner == "kernel":
            return f"kernel {self.implementation}"
        return f"host ({self.implementation})" if self.runner == HOST else f"engine {self.runner}"

    def __str__(self) -> str:
        refused = [f"{who}: {describe_refusal(why)}" for who, why in self.refusals]
        refused += [f"forced by {self.forced}"] if self.forced else []
        because = f" ({'; '.join(refused)})" if refused else ""
        purpose = f" for {self.purpose}" if self.purpose else ""
        head = f"{self.op}({self.op.saw(self.types)}){purpose}"
        return f"{head} on {self.device}: {self.winner}{because}"


@dataclass(frozen=True, slots=True)
class LaunchChoice:
    """A device's way to run an op: a kernel, or else a launch, or else neither (the host)."""

    kernel: Kernel | None
    launch: Launch | None
    name: str
    refusals: tuple[Refusal, ...] = ()
    forced: str = ""

    @property
    def why(self) -> Support:
        """The refusal that says most: one about these types rather than about the op."""
        answers = [why for _, why in self.refusals]
        if not answers:
            return no("policy", f"forced by {self.forced}")
        return next((why for why in answers if why.reason != "op"), answers[-1])


def describe_refusal(why: Support) -> str:
    """An answer in words."""
    return "yes" if why else f"no ({why.reason}): {why.message}"


# -- on the host -------------------------------------------------------------------------------


def choose_engine(
    op: Op, types: tuple[TensorType, ...], device: str, *, fallen: bool = False
) -> tuple[Launch, Decision]:
    """The launch of the best engine on the host that takes the op, or of the one that is forced.

    Args:
        op, types: what is to run.
        device: the logical name of the device that asks.
        fallen: it is not the host, which runs the op in its place.

    Raises:
        UnsupportedOp: all engines refuse; the message has every reason.
    """
    refusals: list[Refusal] = []
    wanted, source = _forced_engine(op, fallen)
    for engine in registry.engines("cpu"):
        if wanted and engine.name != wanted:
            continue
        found = _prepared(engine, op, types)
        if not isinstance(found, Support):
            made = Decision(op, types, device, engine.name, tuple(refusals), engine.name, source)
            return _watched(engine, op, types, found), made
        refusals.append((engine.name, found))
    reasons = "; ".join(f"{name} says no ({why.reason}): {why.message}" for name, why in refusals)
    hint = "unset TREADLE_BACKENDS, or cast to a type that an engine takes"
    raise UnsupportedOp(
        op.name,
        f"no engine on the host runs it on {op.saw(types)}",
        saw=reasons or "there are no engines",
        hint=f"take {source} back" if source else hint,
    )


def _forced_engine(op: Op, fallen: bool) -> tuple[str, str]:
    """The engine that has to run an op on the host, and who says so; kernels' names do not count.

    Raises:
        UnsupportedOp: nothing at all has the name that is forced.
    """
    wanted, source = forced(op.name)
    if wanted == HOST:
        # Where a device asks, the host is the choice, and which of its engines is another one.
        return ("", "") if fallen else ("reference", source)
    engines = [engine.name for engine in registry.engines("cpu")]
    if not wanted or wanted in engines:
        return wanted, source
    others = implementations(op.name)
    if wanted not in others:
        known = ", ".join((*engines, *others, HOST))
        problem = f"{source} asks for {wanted!r}, and nothing of this name runs it"
        raise UnsupportedOp(op.name, problem, hint=f"one of {known}")
    return "", ""


def _prepared(engine: Engine, op: Op, types: tuple[TensorType, ...]) -> Launch | Support:
    return answer(engine.name, engine, "prepare", lambda: engine.prepare(op, types))


Answer = TypeVar("Answer")
_REPORTED: dict[tuple[str, str, type[Exception]], bool] = RUNTIME.table(
    "defects of engines", "messages"
)


def answer(name: str, asked: object, question: str, ask: Callable[[], Answer]) -> Answer | Support:
    """Return the answer of an engine or kernel to a question; some exceptions mean no.

    `CompileError`, `UnsupportedOp` and `NotImplementedError` do, and other errors of Treadle's are
    the caller's to see. Anything else is a defect: Treadle's own surface; a plug-in's mean no, so
    that they do not take working engines away, and the first of each kind is logged as a warning.
    """
    try:
        return ask()
    except CompileError as error:
        return no("device-feature", f"it cannot be compiled: {error.problem}")
    except (UnsupportedOp, NotImplementedError) as error:
        return no("op", f"{question}() refuses: {getattr(error, 'problem', error)}")
    except TreadleError:
        raise
    except Exception as error:
        if is_ours(asked):
            raise
        told = f"{question}() failed: {type(error).__name__}: {error}"
        key = name, question, type(error)
        if key not in _REPORTED:
            _REPORTED[key] = True
            get_logger().warning("%s: %s; others are asked; report it to its authors", name, told)
        return no("failure", told)


def is_ours(asked: object) -> bool:
    """Return whether an engine or kernel is part of this package."""
    return str(getattr(asked, "__module__", "")).startswith("treadle.")


def _watched(engine: Engine, op: Op, types: tuple[TensorType, ...], launch: Launch) -> Launch:
    """The launch; its indices looked at before, as oracles do it themselves.

    Where the engine is not our own, its first results are held against the type rule.
    """
    if engine.name != "reference" and type(op).index_ranges is not Op.index_ranges:
        launch = _with_indices_checked(op, launch)
    if is_ours(engine):
        return launch
    expected: list[tuple[TensorType, ...]] = [op.infer(*types)]

    def checked(*arrays: Any) -> Any:
        made = launch(*arrays)
        if expected:
            check_results(op, expected[0], as_tuple(made), engine.name)
            expected.clear()
        return made

    return checked


def _with_indices_checked(op: Op, launch: Launch) -> Launch:
    def checked(*arrays: Any) -> Any:
        check_indices(op, arrays)
        return launch(*arrays)

    return checked


def check_results(op: Op, types: Sequence[TensorType], made: Sequence[Any], name: str) -> None:
    """Return whether results are what the type rule says; symbolic extents may be anything.

    Raises:
        EngineError: they are not.
    """
    wanted = ", ".join(map(str, types))
    seen = ", ".join(f"{np.dtype(a.dtype).name}{list(a.shape)}" for a in made)
    same = len(made) == len(types) and all(
        t.dtype.numpy == a.dtype and (not t.is_static or tuple(t.shape) == tuple(a.shape))
        for t, a in zip(types, made, strict=False)
    )
    if not same:
        raise EngineError(
            op.name,
            f"the engine {name} returned other types than the op gives",
            saw=f"{seen or 'nothing'} instead of {wanted}",
            hint=f"TREADLE_KERNEL={op.name}=host avoids it; report it to its authors",
        )


# -- on a device -------------------------------------------------------------------------------


def choose_on_device(
    op: Op, types: tuple[TensorType, ...], results: tuple[TensorType, ...], kind: str
) -> LaunchChoice:
    """The first of a device's kernels and engines that takes the op; the host where none does.

    Raises:
        UnsupportedOp: what is forced does not exist, or refuses.
    """
    wanted, source = forced(op.name)
    if wanted and _is_of_host(wanted, op, kind):
        return LaunchChoice(None, None, HOST, (), source)
    if not all(t.is_static for t in results):
        why = no("dynamic-shape", "the result's shape depends on data")
        return LaunchChoice(None, None, HOST, ((kind, why),))
    refusals: list[Refusal] = []
    for name, found in _answers(op, types, kind, wanted):
        if isinstance(found, Support):
            refusals.append((name, found))
        elif isinstance(found, Kernel):
            return LaunchChoice(found, None, name, tuple(refusals), source)
        else:
            return LaunchChoice(None, found, name, tuple(refusals), source)
    if wanted:
        reasons = "; ".join(f"{who} says {describe_refusal(why)}" for who, why in refusals)
        problem = f"{source} asks for {wanted!r}, which does not run it"
        raise UnsupportedOp(op.name, problem, saw=reasons, hint=f"take {source} back")
    return LaunchChoice(None, None, HOST, tuple(refusals))


def _answers(
    op: Op, types: tuple[TensorType, ...], kind: str, wanted: str
) -> Iterator[tuple[str, Kernel | Launch | Support]]:
    """Yield who is asked, in order, and the answers; only those of a name where one is wanted."""
    kernels = kernels_of(op.name, kind)
    for name, kernel in kernels:
        if wanted in ("", name):
            found = _ask(kernel, op, types)
            yield name, kernel if found else found
    engines = registry.engines(kind) if types else ()
    if not kernels and not (engines and _without_kernels(kind)):
        yield kind, no("op", f"{kind} has no kernel for {op.name}")
    for engine in engines:
        if wanted in ("", engine.name):
            yield engine.name, _prepared(engine, op, types)


def kernels_of(op: str, kind: str) -> list[tuple[str, Kernel]]:
    """A device kind's kernels of an op with their names, in the order in which they are asked."""
    entry = registry.for_kind(kind)
    listed = [k for k in entry.kernels() if k.op == op] if entry is not None else []
    found: list[tuple[str, Kernel]] = []
    for kernel in sorted(listed, key=lambda k: -k.priority):
        taken = [name for name, _ in found]
        name = kernel.name or kind
        if name in taken:
            name = f"{name}#{len(found) + 1}"
        found.append((name, kernel))
    return found


def _without_kernels(kind: str) -> bool:
    """Return whether a device relies on generated code alone."""
    entry = registry.for_kind(kind)
    return entry is None or not entry.kernels()


def implementations(op: str) -> tuple[str, ...]:
    """Names of everything that runs an op on devices: kernels, and engines that generate code."""
    kinds = [e.kinds[0] for e in registry.loaded() if e.kinds and not e.serves("cpu")]
    names = [name for kind in kinds for name, _ in kernels_of(op, kind)]
    names += [engine.name for kind in kinds for engine in registry.engines(kind)]
    return tuple(dict.fromkeys(names))


def _is_of_host(wanted: str, op: Op, kind: str) -> bool:
    """Return whether what is forced runs on the host; what nobody has is said so by
    `choose_engine`.
    """
    own = [name for name, _ in kernels_of(op.name, kind)]
    return wanted not in own and wanted not in [e.name for e in registry.engines(kind)]


def _ask(kernel: Kernel, op: Op, types: tuple[TensorType, ...]) -> Support:
    name = kernel.name or f"the kernel of {kernel.op}"
    found: Any = answer(name, kernel.supports, "supports", lambda: kernel.supports(op, types))
    if not isinstance(found, Support):
        return no("policy", f"supports() returned {found!r}, neither yes() nor no(...)")
    return found


# -- decisions as they were made: kept for reports, and logged if asked ------------------------

_MOST = 4096
_LOCK = threading.Lock()
_MADE: dict[tuple[object, ...], Decision] = RUNTIME.table("decisions", "backends")


def note(decision: Decision) -> Decision:
    """Keep a decision that was just made; TREADLE_TRACE_DISPATCH=1 writes it to the log.

    Those about ops without operands, which may be large constants, are only logged.
    """
    with _LOCK:
        if len(_MADE) >= _MOST:
            del _MADE[next(iter(_MADE))]
        if decision.types:
            _MADE[decision.op, decision.types, decision.device, decision.purpose] = decision
    if TRACE_DISPATCH.get() == "1":
        logger = get_logger("dispatch")
        logger.setLevel(logging.INFO)  # whatever the level of the others: it was asked for
        logger.info("%s", decision)
    return decision


def made_for(device: str) -> list[Decision]:
    """The last decisions for a device, by its logical name, oldest first."""
    with _LOCK:
        return [d for d in _MADE.values() if d.device == device]
