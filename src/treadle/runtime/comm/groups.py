"""The groups this process is in, by name; ops hold names, so that programs can be written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.runtime.comm.api import Communicator

WORLD = "world"
"""The name of the group of all processes."""

_groups: dict[str, Communicator] = {}
_leaving: list[Callable[[bool], None]] = []
_losses = [0]


def before_leaving(listener: Callable[[bool], None]) -> None:
    """Register a function called before groups are left: True if all members leave together."""
    _leaving.append(listener)


def _let_go(together: bool) -> None:
    if _groups:
        for listener in _leaving:
            listener(together)


def join(world: Communicator) -> None:
    """Make this process part of a world."""
    leave()
    _groups[WORLD] = world
    _losses[0] = 0


def shrink_to(world: Communicator) -> None:
    """Go on in what is left of the world; ranks are other processes, so all groups are gone."""
    leave()
    _groups[WORLD] = world
    _losses[0] += 1


def losses() -> int:
    """Return how often this process's world has shrunk."""
    return _losses[0]


def leave() -> None:
    """Leave all groups, without a word to their other members."""
    _let_go(together=False)
    _groups.clear()


def world() -> Communicator | None:
    """The group of all processes, if this one is part of it."""
    return _groups.get(WORLD)


def name_of(ranks: Sequence[int]) -> str:
    """The name of a group: its ranks in the world, in order; `@1` in one that has shrunk once."""
    return ",".join(map(str, ranks)) + (f"@{losses()}" if losses() else "")


def ranks_of(name: str) -> list[int]:
    """The ranks of a group in the world, by its name; for the world's name all there are."""
    everybody = _groups.get(WORLD)
    if name == WORLD:
        return [] if everybody is None else list(range(everybody.size))
    named, _, born = name.partition("@")
    if int(born or 0) != losses():  # Those ranks are other processes now.
        return []
    return [int(part) for part in named.split(",") if part.isdecimal()]


def find(name: str) -> Communicator | None:
    """The group of a name, made at first use, in which all of its ranks take part.

    None where there are no groups, or this process is not in that one.
    """
    found = _groups.get(name)
    if found is not None or name == WORLD:
        return found
    everybody, ranks = _groups.get(WORLD), ranks_of(name)
    if everybody is None or everybody.rank not in ranks:
        return None
    made = _groups[name] = everybody.group(ranks, name)
    return made


def close_all() -> None:
    """Leave all groups, after what was sent has been received: all processes do this together."""
    _let_go(together=True)
    for group in reversed(list(_groups.values())):
        group.close()
    _groups.clear()
