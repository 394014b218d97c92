"""The CPU's `Compiler`: lowers ops for the host's target, builds programs, shows kernels."""

from __future__ import annotations

import platform
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from treadle.backends.api import Support
from treadle.backends.codegen import tuned
from treadle.backends.codegen.target import (
    GENERIC,
    NEON_DOT,
    NEON_SDOT,
    TARGETS,
    TRIPLES,
    WASM,
    Target,
)
from treadle.backends.cpu import tuning_record
from treadle.backends.cpu.allocator import HOST
from treadle.backends.cpu.encoding import encode
from treadle.backends.cpu.executable import NativeExecutable, evaluator, restored
from treadle.backends.cpu.host import available_cores, cores, processor, vector_features
from treadle.backends.cpu.native import LAYOUT, executor, toolchain
from treadle.backends.cpu.pool import get_threads
from treadle.backends.cpu.shipped import machine_of, prefix_of, renumbered
from treadle.backends.cpu.toolchain import LoadedCode, Toolchain, linking, llvmlite_version
from treadle.backends.native_code import NativeCode, NativeProgram
from treadle.backends.program import (
    Launch,
    Limits,
    Linked,
    Lowered,
    MapLayout,
    Program,
    Tuned,
    Watched,
    Way,
    runs_of,
)
from treadle.base.arithmetic import Rows, Words
from treadle.base.array import Array
from treadle.base.errors import CompileError
from treadle.base.types import TensorType
from treadle.ops.op import Op


class NativeCompiler:
    """See `treadle.backends.program.Compiler`.

    Args:
        chain: of the target that ops are lowered for; the host's by default. What is built runs
            on the host in any case.
    """

    def __init__(self, chain: Toolchain | None = None) -> None:
        self._here: Toolchain = toolchain()
        self._toolchain = chain or self._here
        self._limits: dict[int, Limits] = {}
        self._watched: list[Watched] | None = None
        tuned.install(tuning_record.read())

    @property
    def is_open(self) -> bool:
        return True

    def evaluator(self, rows: Rows, /) -> Callable[[Words], int]:
        return evaluator(rows)

    @property
    def target(self) -> str:
        measured = tuned.digest()
        return self._toolchain.fingerprint + (f"/tuned-{measured}" if measured else "")

    @property
    def layouts(self) -> tuple[MapLayout, ...]:
        return self._toolchain.target.layouts

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        from treadle.backends.cpu import generators

        if self._watched is None:
            return generators.lower(op, types, frozen, self._toolchain.target)
        with tuned.questions() as asked:
            found = generators.lower(op, types, frozen, self._toolchain.target)
        if asked:
            self._watched.append(Watched(op, tuple(types), tuple(frozen), asked))
        return found

    def keeps(self, name: str, /) -> bool:
        from treadle.backends.cpu import generators

        return name in generators.LOWERINGS

    def build(self, program: Program, /) -> NativeExecutable:
        # Programs have an arena of their own: what eager calls have left over is of no more use.
        HOST.empty_cache()
        return self.executable(program)

    def executable(self, program: Program) -> NativeExecutable:
        """Return the executable of a single op, which needs no memory besides its results."""
        from treadle.backends.cpu import generators

        kernels = {run.kernel for run in runs_of(program.steps)}.union(program.beside)
        return NativeExecutable(encode(program, generators.symbol_of), self.load(kernels))

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any], /) -> Array:
        return HOST.empty(shape, dtype)

    def restore(self, stored: bytes, /) -> NativeExecutable | None:
        HOST.empty_cache()
        return restored(stored)

    def save(self, key: str, data: bytes, /) -> None:
        if self._watched is None:  # nobody would ask for it again
            self._toolchain.cache.put(key, data)

    def saved(self, key: str, /) -> bytes | None:
        return self._toolchain.cache.get(key)

    def limits(self, *, anew: bool = False) -> Limits:
        from treadle.backends.cpu import roofline

        threads = get_threads()
        key = roofline.key_of(self._toolchain.fingerprint, threads)
        data = self.saved(key) if threads not in self._limits else None
        known: Limits | None = self._limits.get(threads) or (data and roofline.decode(data)) or None
        if known is None or anew:
            found = roofline.probe(self._toolchain.target, threads, self.bound)
            # Whatever else runs can only lower what is measured.
            known = found if known is None else known.joined(found)
            self.save(key, roofline.encode(known))
        self._limits[threads] = known
        return known

    def cores(self) -> tuple[int, int]:
        return get_threads(), available_cores()

    def units(self) -> tuple[str, ...]:
        from treadle.backends.cpu import roofline

        return tuple(roofline.units_of(self._toolchain.target))

    def about(self) -> dict[str, str]:
        return {
            "processor": processor(),
            "cores": "{} with {} hardware threads".format(*cores()),
            "vectors": vector_features(),
            "instructions": self._toolchain.target.name,
            "threads": f"{get_threads()} of {available_cores()} cores",
            "llvmlite": llvmlite_version(),
            "tuned": f"{len(tuned.installed())} choices in {tuning_record.path()}",
        }

    def recorded(
        self,
        question: str,
        types: tuple[TensorType, ...],
        frozen: tuple[bool, ...],
        ways: Callable[[], Sequence[Way]],
        /,
    ) -> int | None:
        target = self._toolchain.target
        if self._watched is not None:
            first, *others = ways()
            asked = {tuned.name_of(target, question): tuple({"way": w.number} for w in others)}
            ops = tuple(w.op for w in others)
            self._watched.append(Watched(first.op, types, frozen, asked, ops))
        found = tuned.choice(target, question)
        return None if found is None else found.get("way")

    @contextmanager
    def watch(self) -> Iterator[list[Watched]]:
        before, self._watched = self._watched, []
        try:
            # A name of its own keeps what is compiled inside apart from what is remembered.
            with tuned.trying({secrets.token_hex(8): {}}):
                yield self._watched
        finally:
            self._watched = before

    def tune(
        self, watched: Sequence[Watched], seconds: float = 0.5, /, *, apart: bool = False
    ) -> Iterator[Tuned]:
        from treadle.backends.cpu import tuning

        if apart:
            return iter(tuning.tune_apart(watched, seconds))

        def lower(work: Watched) -> Lowered | Support:
            return self.lower(work.op, work.types, work.frozen)

        found = tuning.tune(watched, lower, self.bound, seconds)
        return found

    def bound(self, program: Program, arrays: Sequence[Array]) -> Callable[[], None]:
        """The program as a function of nothing that runs on these arrays, one per base."""
        executable = self.executable(program)
        bases = np.array([a.__array_interface__["data"][0] for a in arrays], np.int64)

        def run(_keep: Sequence[Array] = arrays) -> None:
            executable.run(bases)

        return run

    def load(self, kernels: Iterable[Any]) -> list[LoadedCode]:
        """Libraries that have all these kernels.

        Raises:
            CompileError: LLVM does not accept a kernel.
        """
        from treadle.backends.cpu import generators

        target, symbol_of = self._here.target, generators.symbol_of
        return self._here.load({symbol_of(k): _Text(k, target) for k in kernels})

    def _encoded(
        self, programs: Sequence[Program]
    ) -> tuple[tuple[NativeProgram, ...], dict[str, Any]]:
        """The words of programs, and the kernels that they share, by symbol and in its order."""
        from treadle.backends.cpu import generators

        every = dict.fromkeys(run.kernel for p in programs for run in runs_of(p.steps))
        named = {generators.symbol_of(kernel): kernel for kernel in every}
        kernels = {symbol: named[symbol] for symbol in sorted(named)}
        number = {symbol: i for i, symbol in enumerate(kernels)}
        made = []
        for program in programs:
            code = encode(program, generators.symbol_of)
            words = renumbered(code, number.__getitem__)
            made.append(NativeProgram(words, code.places, code.steps, code.bases))
        return tuple(made), kernels

    def linked(self, programs: Sequence[Program], prefix: str, /) -> Linked:
        target = self._toolchain.target
        made, kernels = self._encoded(programs)
        texts = {symbol: _Text(kernel, target) for symbol, kernel in kernels.items()}
        machine = machine_of(target)
        text = executor(prefix, machine.architecture, machine.system)
        objects = (*self._toolchain.objects(texts), self._toolchain.object(text))
        found = made, tuple(kernels), objects
        return Linked(*found, target.name, machine.requires, machine.architecture, LAYOUT)

    def toward(self, target: str = "", system: str = "", /) -> NativeCompiler:
        found = TARGETS.get(target) if target else self._toolchain.target
        if found is None:
            raise CompileError(
                "cpu", f"there is no target {target!r}", hint=f"one of {', '.join(TARGETS)}"
            )
        if system:
            found = replace(found, triple=self._triple(found, system))
            if not system.startswith("linux"):
                found = _without_asking(found, system)
        elif not found.triple and found.vector_bytes > GENERIC.vector_bytes:
            foreign = platform.machine() not in ("x86_64", "AMD64")
            found = replace(found, triple="x86_64-unknown-linux-gnu" if foreign else "")
        return NativeCompiler(Toolchain(found, self._here.cache))

    @staticmethod
    def _triple(target: Target, system: str) -> str:
        """A target's triple on a system."""
        if system not in TRIPLES or target.name == WASM.name:
            raise CompileError(
                "cpu",
                f"there is no system {system!r} for {target.name}",
                hint=f"one of {', '.join(TRIPLES)}",
            )
        is_wide = target.vector_bytes > GENERIC.vector_bytes
        here = "x86_64" if is_wide and not target.triple else machine_of(target).architecture
        return TRIPLES[system].format(here)

    def shipped(self, programs: Sequence[Program], /) -> NativeCode:
        target = self._toolchain.target
        made, kernels = self._encoded(programs)
        machine = machine_of(target)
        texts: dict[str, Callable[[], str]] = {s: _Text(k, target) for s, k in kernels.items()}
        # Named by its digest, as kernels are, so that it is compiled once.
        texts[prefix_of(machine)] = lambda: executor(prefix_of(machine), machine.architecture)
        objects = self._toolchain.objects(texts)
        foreign = machine.architecture != machine_of(self._here.target).architecture
        library = linking().shared_library(objects, machine.architecture if foreign else "")
        kept = () if library else tuple(objects)
        return NativeCode(made, tuple(kernels), library or b"", kept, machine)

    def compiled_by(self) -> str:
        measured = tuned.digest()
        return f"llvmlite {llvmlite_version()}" + (f", tuned {measured}" if measured else "")

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        if form == "kernel":
            from treadle.backends.cpu import generators

            return generators.kernel_text(launch.kernel)
        text = _Text(launch.kernel, self._toolchain.target)()
        return text if form == "llvm" else self._toolchain.assembly(text)


def _without_asking(target: Target, system: str) -> Target:
    """The target without instructions that only Linux is asked for, or tells of.

    Raises:
        CompileError: the target is made of them.
    """
    # Windows tells of dot products of bytes and bfloat16 in its newest versions alone.
    if target.name in (NEON_SDOT.name, NEON_DOT.name) and system == "windows":
        problem = f"there is no target {target.name} for windows"
        raise CompileError("cpu", problem, hint="use neon")
    # A process asks for AMX before it uses it, and every system in another way.
    kept = tuple(f for f in target.features if not f.startswith("+amx"))
    return replace(target, features=kept, matrices=False)


class _Text:
    """A kernel's LLVM text, printed when the cache does not have its object."""

    def __init__(self, kernel: Any, target: Target) -> None:
        self._kernel = kernel
        self._target = target

    def __call__(self) -> str:
        from treadle.backends.cpu import generators

        return generators.module_text([self._kernel], self._target)
