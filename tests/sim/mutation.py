"""A mutation: one mistake in the simulated backend, and the check that has to notice it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.backend import Sim
from tests.sim.device import SimDevice
from tests.sim.kernels import standard

from treadle.backends.api import Kernel


@dataclass(frozen=True)
class Mutation:
    """A mistake: how to make the backend that has it, and a pattern of the checks to run."""

    name: str
    check: str
    make: Callable[[], Any]
    before: str = ""
    """Source that the plug-in's module begins with."""


MUTATIONS: dict[str, Mutation] = {}


def mutation(check: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Decorator: a function that makes a broken backend, and who has to notice."""

    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        name = make.__name__
        MUTATIONS[name] = Mutation(name, check, make)
        return make

    return add


def device(check: str) -> Callable[[type[SimDevice]], type[SimDevice]]:
    """Decorator: a class of devices that are broken."""

    def add(cls: type[SimDevice]) -> type[SimDevice]:
        name = cls.__name__
        MUTATIONS[name] = Mutation(name, check, lambda: Sim(device=cls))
        return cls

    return add


def kernels(check: str) -> Callable[[Callable[[], list[Kernel]]], Callable[[], list[Kernel]]]:
    """Decorator: a function that gives broken kernels, which take the place of sound ones."""

    def add(make: Callable[[], list[Kernel]]) -> Callable[[], list[Kernel]]:
        name = make.__name__

        def backend() -> Sim:
            broken = make()
            ops = {k.op for k in broken}
            return Sim(kernels=[*broken, *[k for k in standard() if k.op not in ops]])

        MUTATIONS[name] = Mutation(name, check, backend)
        return make

    return add
