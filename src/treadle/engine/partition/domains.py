"""Domains: engines between which values pass for nothing, so that nodes choose among them freely.

Those that run single ops, or compile programs together, on one memory are a domain. A segment
engine is one for itself, since it compiles apart from all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.backends.api import Engine
from treadle.backends.segments import SegmentEngine
from treadle.engine.partition.model import compile_apart


class Domains:
    """The domains of some engines.

    Attributes:
        members: numbers of engines, by domain.
        of: the domain of every engine.
        home: the domain of what lies outside the program: the first one that is not a segment
            engine, if there is one.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.members: list[list[int]] = []
        for i, engine in enumerate(engines):
            for domain in self.members:
                if not compile_apart(engine, engines[domain[0]]):
                    domain.append(i)
                    break
            else:
                self.members.append([i])
        self.of = {e: i for i, domain in enumerate(self.members) for e in domain}
        plain = (i for i, e in enumerate(engines) if is_plain(e))
        self.home = self.of[next(plain, 0)]

    def __len__(self) -> int:
        return len(self.members)


def is_plain(engine: Engine) -> bool:
    """Return whether an engine runs ops, rather than compiling segments."""
    return not isinstance(engine, SegmentEngine)
