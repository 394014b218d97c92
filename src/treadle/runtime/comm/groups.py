"""The groups this process is in, by name; ops hold names, so that programs can be written down."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.runtime.comm.api import Communicator

WORLD = "world"
"""The name of the group of all processes."""

_groups: dict[str, Communicator] = {}


def join(world: Communicator) -> None:
    """Make this process part of a world."""
    _groups.clear()
    _groups[WORLD] = world


def leave() -> None:
    """Leave all groups, without a word to their other members."""
    _groups.clear()


def world() -> Communicator | None:
    """The group of all processes, if this one is part of it."""
    return _groups.get(WORLD)


def name_of(ranks: Sequence[int]) -> str:
    """The name of a group: its ranks in the world, in order."""
    return ",".join(map(str, ranks))


def find(name: str) -> Communicator | None:
    """The group of a name, made at first use, in which all of its ranks take part.

    None where there are no groups, or this process is not in that one.
    """
    found = _groups.get(name)
    if found is not None or name == WORLD:
        return found
    everybody = _groups.get(WORLD)
    ranks = [int(part) for part in name.split(",") if part.isdecimal()]
    if everybody is None or everybody.rank not in ranks:
        return None
    made = _groups[name] = everybody.group(ranks, name)
    return made


def close_all() -> None:
    """Leave all groups, after what was sent has been received: all processes do this together."""
    for group in reversed(list(_groups.values())):
        group.close()
    _groups.clear()
