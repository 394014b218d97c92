"""A renderer whose device is the toy one and whose compiler is the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.backends.api import Support, yes
from treadle.backends.codegen.kernel.interpret import run
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.target import GENERIC, Target
from treadle.base.errors import CompileError
from treadle.runtime.api import Device, Stream

KNOWN: dict[str, Any] = {}
"""Kernels by symbol: what a binary would contain."""


class FakeRenderer:
    """Sources and binaries are lists of symbols; launches run at once."""

    name = "fake"

    def __init__(self, fingerprint: str = "1") -> None:
        self.fingerprint = fingerprint
        self.sources: list[str] = []
        self.launched: list[tuple[str, int]] = []
        self.given: list[tuple[Any, ...]] = []

    @property
    def target(self) -> Target:
        return GENERIC

    def supports(self, kernel: Any, /) -> Support:
        return yes()

    def render(self, kernels: Sequence[Any], /) -> str:
        KNOWN.update((symbol_of(k), k) for k in kernels)
        return "\n".join(map(symbol_of, kernels))

    def compile(self, source: str, /) -> bytes:
        if "broken" in source:
            raise CompileError("fake", "a kernel is broken")
        self.sources.append(source)
        return source.encode()

    def load(self, device: Device, binary: bytes, symbols: Sequence[str], /) -> list[Any]:
        inside = binary.decode().splitlines()
        assert set(symbols) <= set(inside)
        return [KNOWN[symbol] for symbol in symbols]

    def launch(
        self,
        device: Device,
        launchable: Any,
        arguments: tuple[Any, ...],
        items: int,
        serial: bool,
        stream: Stream,
        /,
    ) -> None:
        self.launched.append((launchable.name, items))
        self.given.append(arguments)
        taken = []
        for argument, parameter in zip(arguments, launchable.parameters, strict=True):
            if isinstance(argument, int):
                taken.append(argument)
                continue
            buffer, offset = argument
            raw = buffer.bytes[offset:]
            width = parameter.dtype.itemsize
            whole = raw[: len(raw) // width * width]
            taken.append(np.frombuffer(whole, np.uint8).view(parameter.dtype.numpy))
        run(launchable, taken, 0, items)
