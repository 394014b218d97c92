"""One token out of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from treadle.llm.generation.options import Options

Floats: TypeAlias = npt.NDArray[np.float64]
Logits: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int64]

_FEW = 1024
"""Tokens that are looked at first: hardly ever does a choice need more."""
_COLDEST = 1e-30
"""A temperature at which the likeliest token is certain, and which float32 holds."""


@dataclass(frozen=True)
class SampledToken:
    """A token and, where they were asked for, log-probabilities of it and of the likeliest."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(
    logits: Logits,
    options: Options,
    prompt: Sequence[int],
    generated: Sequence[int],
    sequence: int = 0,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> SampledToken:
    """The next token.

    Args:
        logits: of all tokens.
        options: what is applied to them.
        prompt, generated: what came before.
        sequence: several answers to one prompt have different numbers.
        allowed: which tokens may come, where the answer has a form.

    Sources: nucleus sampling, Holtzman et al. 2020; typical sampling, Meister et al. 2022; min-p,
    Nguyen et al. 2024; repetition penalty, Keskar et al. 2019; presence and frequency as OpenAI
    defines them.
    """
    penalized = _penalized(logits, options, prompt, generated)
    if allowed is not None:
        penalized = np.where(allowed, penalized, -np.inf)
    token = _chosen(penalized, options, len(generated), sequence)
    return (
        SampledToken(token) if options.logprobs is None else rated(logits, token, options.logprobs)
    )


def rated(logits: Logits, token: int, count: int) -> SampledToken:
    """A token with its log-probability, and with those of the likeliest ones."""
    scores = logits.astype(np.float64)
    largest = scores.max()
    logs = scores - (largest + np.log(np.exp(scores - largest).sum()))
    top = [(int(i), float(logs[i])) for i in _largest(logs, count)]
    return SampledToken(token, float(logs[token]), tuple(top))


def _penalized(
    scores: Logits, options: Options, prompt: Sequence[int], generated: Sequence[int]
) -> Logits:
    """Logits with bias and penalties."""
    counted = options.presence_penalty or options.frequency_penalty
    if not (options.logit_bias or counted or options.repetition_penalty != 1.0):
        return scores
    found = scores.copy()
    for token, bias in options.logit_bias.items():
        if 0 <= token < len(found):
            found[token] += bias
    if options.repetition_penalty != 1.0:
        seen = np.unique(np.asarray([*prompt, *generated], np.int64))
        given = found[seen]
        penalty = options.repetition_penalty
        found[seen] = np.where(given > 0, given / penalty, given * penalty)
    if counted and generated:
        seen, counts = np.unique(np.asarray(generated, np.int64), return_counts=True)
        found[seen] -= counts * options.frequency_penalty + options.presence_penalty
    return found


def _chosen(scores: Logits, options: Options, position: int, sequence: int) -> int:
    if options.temperature == 0 or not np.isfinite(scores.max()):
        return int(scores.argmax())
    drawn = _uniform(options.seed, sequence, position)
    largest = float(scores.max())
    # Of all tokens in float32, in one buffer: six times as fast as float64, and within a
    # ten-millionth of the sum.
    with np.errstate(over="ignore"):
        every = scores - np.float32(largest)
        every /= np.float32(max(options.temperature, _COLDEST))
        whole = float(np.exp(every, out=every).sum(dtype=np.float64))
    wanted = min(options.top_k or len(scores), len(scores))
    count = options.top_k or _FEW
    while True:
        order = _largest(scores, min(count, wanted))
        weights = np.exp((scores[order].astype(np.float64) - largest) / options.temperature)
        token = _drawn(order, weights, whole, options, drawn, every=len(order) == wanted)
        if token is not None:
            return token
        count *= 16


def _drawn(
    order: Ints, weights: Floats, whole: float, options: Options, drawn: float, *, every: bool
) -> int | None:
    """The token at a share of the mass, likeliest first; None where it is not among these.

    Args:
        order: the likeliest tokens, likeliest first.
        weights: theirs.
        whole: the sum of the weights of all tokens.
        options: what leaves tokens out.
        drawn: the share, in [0, 1).
        every: whether these are all tokens that may be chosen. The choice does not depend on how
            many tokens are looked at, if it can be made.
    """
    every = every or weights[-1] == 0
    total = float(weights.sum()) if options.top_k else whole
    mass = total
    if options.top_p < 1.0:
        count = int(weights.cumsum().searchsorted(options.top_p * total)) + 1
        if count > len(order) and not every:
            return None
        order, weights, every = order[:count], weights[:count], True
        mass = float(weights.sum())
    if options.min_p:
        least = options.min_p * weights[0]
        if weights[-1] >= least and not every:
            return None
        kept = weights >= least
        order, weights, every = order[kept], weights[kept], True
        mass = float(weights.sum())
    if options.typical_p < 1.0:
        if not every:
            return None
        order, weights = _typical(order, weights, options.typical_p)
        mass = float(weights.sum())
    sums = weights.cumsum()
    place = int(sums.searchsorted(drawn * mass, "right"))
    if place < len(order):
        return int(order[place])
    # Behind the last token that weighs anything is nothing that could be drawn.
    return int(order[int(sums.searchsorted(sums[-1]))]) if every else None


def _typical(order: Ints, weights: Floats, share: float) -> tuple[Ints, Floats]:
    """Tokens whose surprise is nearest to the entropy, up to a share of the mass."""
    p = weights / weights.sum()
    surprise = -np.log(np.maximum(p, 1e-300))
    nearest = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
    count = int(p[nearest].cumsum().searchsorted(share)) + 1
    kept = np.sort(nearest[:count])
    return order[kept], weights[kept]


def _largest(scores: Floats | Logits, count: int) -> Ints:
    """Places of the largest, largest first; of equal ones the first."""
    if count <= 0:
        return np.zeros(0, np.int64)
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        places = np.flatnonzero(scores >= least)
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")][:count]


def _uniform(seed: int, sequence: int, position: int) -> float:
    """A number in [0, 1) that depends on these three alone."""
    counter: Any = [position, sequence, 0, 0]
    return float(np.random.Generator(np.random.Philox(key=seed, counter=counter)).random())
