"""Rotary position embedding: the angles of all variants, and the rotation.

A pair of features of query and key is rotated by position · frequency. Variants differ in the
frequencies: some are stretched so that more positions fit, some depend on how long a sequence is.
Source: Su et al., "RoFormer" (2021); for the variants, the papers that their functions name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.base.errors import CheckpointError
from treadle.llm.models.config import Config
from treadle.tensor import Tensor

Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rotary:
    """Angles of rotation for every position.

    Attributes:
        frequencies: radians per position, one for each pair of features.
        amplitude: what cosines and sines are multiplied by.
        interleaved: pairs are neighbors (2i, 2i + 1), not halves (i, i + d/2).
        limit: sequences longer than this use `long`, or grow.
        long: the frequencies of such sequences.
        growth: θ and s of the dynamic variant, whose θ grows with the sequence.
    """

    frequencies: Floats
    amplitude: float = 1.0
    interleaved: bool = False
    limit: int = 0
    long: Floats | None = None
    growth: tuple[float, float] | None = None

    def angles(self, positions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines.

        Args:
            positions: int32 (batch, time).
            lengths: int32 (batch,), of the sequences with these positions included. A sequence
                is rotated by its own length, whatever else is in the batch.

        Returns:
            Two of float32 (batch, time, d/2).
        """
        at = F.expand_dims(positions.astype("float32"), -1)
        turned = at * self._frequencies(lengths)
        return F.cos(turned) * self.amplitude, F.sin(turned) * self.amplitude

    def _frequencies(self, lengths: Tensor) -> Tensor:
        """(d/2,), or (batch, 1, d/2) where they depend on the length."""
        short = Tensor(self.frequencies)
        lengths = F.reshape(lengths, (-1, 1, 1))
        if self.long is not None:
            long: Tensor = F.where(lengths > self.limit, Tensor(self.long), short)
            return long
        if self.growth is None:
            return short
        return self._grown(lengths, *self.growth)

    def _grown(self, lengths: Tensor, theta: float, factor: float) -> Tensor:
        """1 / θ'^(2i/d) with θ' = θ · (s · L / M − (s − 1))^(d/(d−2)), L at least M."""
        d = 2 * len(self.frequencies)
        reached = F.maximum(lengths.astype("float32"), float(self.limit))
        stretched = reached * (factor / self.limit) - (factor - 1)
        exponents = -np.arange(0, d, 2, dtype=np.float32) / np.float32(d)
        base = F.log(stretched) * (d / (d - 2)) + math.log(theta)
        return F.exp(base * Tensor(exponents))


def rotate(x: Tensor, angles: tuple[Tensor, Tensor], interleaved: bool = False) -> Tensor:
    """Rotate the first features of heads; those beyond the angles pass.

    Args:
        x: (batch, heads, time, features).
        angles: cosines and sines, (batch, time, d/2) each, d ≤ features.
        interleaved: pairs are neighbors, not halves.
    """
    batch, time, half = angles[0].shape
    cos, sin = (F.reshape(a, (batch * time, half)) for a in angles)
    # The tables are those of the call: a row's begin where the one before ends.
    starts = Tensor(np.arange(batch, dtype=np.int32) * time)
    return F.rope(x, cos, sin, starts, interleaved=interleaved)


def rotary(config: Config, features: int, parameters: Config | None = None) -> Rotary:
    """Return the rotation that a config describes.

    Args:
        config: of the model.
        features: of one head.
        parameters: those of a kind of layers, where kinds differ; else they are looked for under
            `rope_parameters` (transformers 5) and `rope_scaling`.

    Raises:
        CheckpointError: the variant is unknown, or its numbers cannot be.
    """
    given = rope_parameters(config) if parameters is None else parameters
    theta = given.number("rope_theta", config.number("rope_theta", 10000.0))
    portion = given.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    d = int(features * portion)
    if d < 2 or d % 2 or d > features:
        problem = f"turns {d} of {features} features of a head"
        raise CheckpointError(given.where, problem, hint="an even number of them is turned")
    kind = given.text("rope_type", given.text("type", "default"))
    if kind not in VARIANTS:
        known = ", ".join(sorted(VARIANTS))
        raise CheckpointError(
            given.where, f"rope_type {kind!r} is unknown", hint=f"Treadle knows {known}"
        )
    plain = Rotary(_powers(theta, d), interleaved=config.flag("rope_interleaved", False))
    return VARIANTS[kind](plain, _Asked(config, given, theta, d))


def rope_parameters(config: Config) -> Config:
    """The object with rotation's parameters, whichever of its names it has."""
    return config.part("rope_parameters" if config.has("rope_parameters") else "rope_scaling")


@dataclass(frozen=True)
class _Asked:
    """Values that functions of variants read."""

    config: Config
    given: Config
    theta: float
    d: int

    @property
    def original(self) -> int:
        """Positions that the model was first trained for."""
        given = self.config if self.config.has("original_max_position_embeddings") else self.given
        trained = self.config.count("max_position_embeddings", 2048)
        return given.count("original_max_position_embeddings", trained)

    @property
    def factor(self) -> float:
        """The factor by which positions are stretched."""
        if self.given.has("factor"):
            return self.given.number("factor")
        return self.config.count("max_position_embeddings") / self.original


def _powers(theta: float, d: int) -> Floats:
    exponents = np.arange(0, d, 2, dtype=np.float32) / np.float32(d)
    return _floats(1 / np.power(np.float32(theta), exponents))


def _floats(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, np.float32)


def _default(plain: Rotary, asked: _Asked) -> Rotary:
    return plain


def _linear(plain: Rotary, asked: _Asked) -> Rotary:
    """Chen et al., "Extending Context Window ... via Positional Interpolation" (2023)."""
    return replace(plain, frequencies=_floats(plain.frequencies / asked.given.number("factor")))


def _dynamic(plain: Rotary, asked: _Asked) -> Rotary:
    """θ grows once a sequence is longer than trained; keys that lie in a cache stay as they are."""
    if asked.d < 4:
        raise CheckpointError(asked.given.where, f"dynamic rotation of {asked.d} features")
    growth = (asked.theta, asked.given.number("factor"))
    return replace(plain, limit=asked.config.count("max_position_embeddings"), growth=growth)


def _llama3(plain: Rotary, asked: _Asked) -> Rotary:
    """Slow pairs are stretched, quick ones are not, those between are blended (Llama 3.1)."""
    factor = asked.given.number("factor")
    low, high = asked.given.number("low_freq_factor"), asked.given.number("high_freq_factor")
    if low >= high:
        raise asked.given.wrong("low_freq_factor", "is not below high_freq_factor")
    f = plain.frequencies
    blend = np.clip((asked.original * f / (2 * math.pi) - low) / (high - low), 0, 1)
    return replace(plain, frequencies=_floats((1 - blend) * f / factor + blend * f))


def _yarn(plain: Rotary, asked: _Asked) -> Rotary:
    """Peng et al., "YaRN: Efficient Context Window Extension" (2023)."""
    given, d, factor = asked.given, asked.d, asked.factor
    if asked.theta <= 1:
        raise given.wrong("rope_theta", "is not above 1")

    def pair(turns: float) -> float:
        """The index of the pair that turns so often within the trained positions."""
        within = math.log(asked.original / (2 * math.pi * turns))
        return d * within / (2 * math.log(asked.theta))

    first, last = pair(given.number("beta_fast", 32.0)), pair(given.number("beta_slow", 1.0))
    if given.flag("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, d - 1)
    width = last - first if last != first else 0.001
    ramp = np.clip((np.arange(d // 2) - first) / width, 0, 1)
    f = plain.frequencies
    frequencies = _floats(f / factor * ramp + f * (1 - ramp))
    return replace(plain, frequencies=frequencies, amplitude=_yarn_amplitude(given, factor))


def _yarn_amplitude(given: Config, factor: float) -> float:
    if given.has("attention_factor"):
        return given.number("attention_factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    over, under = (given.number(n, 0.0, positive=False) for n in ("mscale", "mscale_all_dim"))
    return scale(over) / scale(under) if over and under else scale(1.0)


def _longrope(plain: Rotary, asked: _Asked) -> Rotary:
    """Ding et al., "LongRoPE" (2024): a divisor for each pair, others for long sequences."""
    given, factor, half = asked.given, asked.factor, asked.d // 2
    short, long = (
        _floats(plain.frequencies / _floats(given.numbers(name, half)))
        for name in ("short_factor", "long_factor")
    )
    amplitude = math.sqrt(1 + math.log(factor) / math.log(asked.original)) if factor > 1 else 1.0
    amplitude = given.number("attention_factor", amplitude)
    limit = asked.original
    return replace(plain, frequencies=short, long=long, limit=limit, amplitude=amplitude)


def _divided(plain: Rotary, asked: _Asked) -> Rotary:
    """A divisor for each pair, as GGUF files hold it in place of the numbers of Llama 3.1."""
    divisors = asked.given.numbers("divisors", asked.d // 2)
    return replace(plain, frequencies=_floats(plain.frequencies / _floats(divisors)))


VARIANTS: dict[str, Callable[[Rotary, _Asked], Rotary]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
    "divided": _divided,
}
"""By `rope_type`."""
