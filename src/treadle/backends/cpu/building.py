"""Texts to objects, and objects to code through LLVM: what a warm start does not import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from treadle.backends.codegen.target import Target
from treadle.backends.cpu import llvm_compile
from treadle.backends.cpu.compile_processes import CompileProcesses
from treadle.base.errors import CompileError


def linked_by_llvm(objects: Sequence[bytes], symbols: Sequence[str]) -> Any:
    """The objects as code in memory: `found[symbol]` is an address, while `found` lives.

    Raises:
        CompileError: LLVM's loader does not take them.
    """
    try:
        return llvm_compile.link(list(objects), list(symbols))
    except (OSError, RuntimeError) as error:
        raise CompileError("cpu", f"compiled code cannot be loaded: {error}") from error


def objects_of(writers: Mapping[str, Callable[[], str]], target: Target) -> dict[str, bytes]:
    """The object of every text, compiled here and, where that pays, in other processes meanwhile.

    Raises:
        CompileError: LLVM does not accept a text.
    """
    made: dict[str, bytes] = {}
    with CompileProcesses(len(writers), names_of(target)) as others:
        texts = {symbol: write() for symbol, write in writers.items()}
        order = sorted(texts, key=lambda symbol: -len(texts[symbol]))
        others.give((symbol, texts[symbol]) for symbol in order)
        while (job := others.next()) is not None:
            made[job[0]] = translate(job[1], target)
        made.update(others.results())
    for symbol in order:  # what a process that died, or LLVM's refusal, left undone
        if symbol not in made:
            made[symbol] = translate(texts[symbol], target)
    return made


def names_of(target: Target) -> tuple[str, str, str]:
    """Triple, processor and features as LLVM wants them."""
    return target.triple, target.cpu, ",".join(target.features)


def translate(text: str, target: Target, form: Literal["object", "assembly"] = "object") -> bytes:
    """Object code or assembly of a module.

    Raises:
        CompileError: LLVM does not accept the text.
    """
    try:
        return llvm_compile.translate(text, *names_of(target), form)
    except RuntimeError as error:
        raise CompileError(
            "cpu", f"LLVM refuses generated code: {error}", hint="report this as a defect"
        ) from error
