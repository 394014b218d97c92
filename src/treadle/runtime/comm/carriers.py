"""Libraries that carry arrays of devices between processes without a detour through the host.

Which ranks can use one, and on which hardware, they tell one another when they join a world. So
every rank knows of every group, without asking anybody, whether its arrays travel by the library:
all ranks of a group must decide alike, or some would wait for the others for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from treadle.base.process import RUNTIME
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import Communicator

NCCL = "nccl"


@dataclass(frozen=True, slots=True)
class Offer:
    """One rank's version of a library.

    Attributes:
        version: of the library; ranks use it together where it is equal.
        hardware: names the device that this rank's arrays are on, unlike any other one.
        refusal: why the library cannot be used here; empty where it can.
    """

    version: str = ""
    hardware: str = ""
    refusal: str = ""


_offers: dict[str, tuple[Offer, ...]] = {}
"""By library, what every rank of the world has."""
_HELD = [False]
"""True if arrays go through the host although a library could carry them."""


def meet(world: Communicator, own: Mapping[str, Offer]) -> None:
    """Tell all ranks of a world what this one has, by library; all of them call this together."""
    every = world.exchange({name: astuple(offer) for name, offer in own.items()})
    names = sorted({name for told in every for name in told})
    missing = ("", "", "the library, or a device that it serves, is missing")
    _offers.clear()
    for name in names:
        _offers[name] = tuple(Offer(*told.get(name, missing)) for told in every)
    RUNTIME.invalidate("launches")


def why_not(library: str, group: str) -> str:
    """Return why a library does not carry arrays of a group, by its name; empty where it does."""
    world = groups.world()
    offers = _offers.get(library)
    if world is None or offers is None or len(offers) != world.size:
        return "no rank has said that it has a device for it"
    ranks = groups.ranks_of(group)
    if not ranks or not all(0 <= r < world.size for r in ranks):
        return f"there is no group {group!r}"
    refused = [(r, offers[r].refusal) for r in ranks if offers[r].refusal]
    if refused:
        return f"rank {refused[0][0]}: {refused[0][1]}"
    return _mismatch(ranks, [offers[r] for r in ranks])


def _mismatch(ranks: Sequence[int], offers: Sequence[Offer]) -> str:
    versions = sorted({offer.version for offer in offers})
    if len(versions) > 1:
        return f"ranks have versions {' and '.join(versions)}"
    first: dict[str, int] = {}
    for rank, offer in zip(ranks, offers, strict=True):
        if offer.hardware in first:
            return f"ranks {first[offer.hardware]} and {rank} have the same device"
        first[offer.hardware] = rank
    return ""


def version(library: str) -> str:
    """The version that this process's world uses; empty where nobody has said so."""
    world, offers = groups.world(), _offers.get(library, ())
    return offers[world.rank].version if world is not None and world.rank < len(offers) else ""


def hold(value: bool) -> bool:
    """Send all arrays through the host, or no longer; returns the setting before.

    It takes effect with the next collective; all ranks say the same.
    """
    before, _HELD[0] = _HELD[0], value
    return before


def held() -> bool:
    """Return whether all arrays go through the host because somebody wants them to."""
    return _HELD[0]
