"""Random numbers of devices: one generator of the CPU for each, so that numbers equal the CPU's."""

from __future__ import annotations

from typing import TypeAlias

import torch

from treadle.interop.torch.device.places import index_of, places

_SEED = [torch.initial_seed()]
_GENERATORS: dict[int, torch.Generator] = {}

Device: TypeAlias = torch.device | str | int | None


def of(index: int) -> torch.Generator:
    """The generator of a device."""
    found = _GENERATORS.get(index)
    if found is None:
        found = torch.Generator("cpu").manual_seed(_SEED[0])
        found = _GENERATORS.setdefault(index, found)
    return found


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    of(index_of(None)).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; `torch.manual_seed` does."""
    _SEED[0] = int(seed)
    for generator in _GENERATORS.values():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the generator of the current device with a number that nobody knows."""
    of(index_of(None)).seed()


def seed_all() -> None:
    """Seed all generators with one number that nobody knows."""
    manual_seed_all(torch.Generator("cpu").seed())


def initial_seed() -> int:
    """Return the last seed of the current device's generator."""
    return int(of(index_of(None)).initial_seed())


def get_rng_state(device: Device = None) -> torch.Tensor:
    """The state of a device's generator, a tensor of the CPU."""
    return of(index_of(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Put a generator into a state that `get_rng_state` gave."""
    of(index_of(device)).set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators."""
    return [of(i).get_state() for i in range(len(places()))]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Put all generators into states that `get_rng_state_all` gave."""
    for index, state in enumerate(new_states):
        of(index).set_state(state.cpu())
