"""One token out of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from treadle.llm.generation.options import Options

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_FEW = 1024
"""Tokens that are looked at first: hardly ever does a choice need more."""


@dataclass(frozen=True)
class Choice:
    """A token and, where they were asked for, log-probabilities of it and of the likeliest."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(
    logits: npt.NDArray[np.float32],
    options: Options,
    prompt: Sequence[int],
    generated: Sequence[int],
    sequence: int = 0,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Choice:
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
    scores = logits.astype(np.float64)
    penalized = _penalized(scores, options, prompt, generated)
    if allowed is not None:
        penalized = np.where(allowed, penalized, -np.inf)
    token = _chosen(penalized, options, len(generated), sequence)
    if options.logprobs is None:
        return Choice(token)
    largest = scores.max()
    logs = scores - (largest + np.log(np.exp(scores - largest).sum()))
    top = [(int(i), float(logs[i])) for i in _largest(logs, options.logprobs)]
    return Choice(token, float(logs[token]), tuple(top))


def _penalized(
    scores: Floats, options: Options, prompt: Sequence[int], generated: Sequence[int]
) -> Floats:
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


def _chosen(scores: Floats, options: Options, position: int, sequence: int) -> int:
    if options.temperature == 0 or not np.isfinite(scores.max()):
        return int(scores.argmax())
    order, weights = _candidates(scores / options.temperature, options)
    sums = weights.cumsum()
    drawn = _uniform(options.seed, sequence, position) * sums[-1]
    last = int(sums.searchsorted(sums[-1]))  # behind it is nothing that could be drawn
    return int(order[min(int(sums.searchsorted(drawn, "right")), last)])


def _candidates(scores: Floats, options: Options) -> tuple[Ints, Floats]:
    """Tokens that are left, likeliest first, and their probabilities, not normalized."""
    exact = np.exp(scores - scores.max())
    whole = exact.sum()
    wanted = min(options.top_k or len(scores), len(scores))
    order = _largest(scores, min(max(wanted, 1), _FEW))
    if len(order) < wanted and not _suffices(exact[order], whole, options):
        order = _largest(scores, wanted)
    weights = exact[order]
    total = weights.sum() if options.top_k else whole
    if options.top_p < 1.0:
        order, weights = _nucleus(order, weights, options.top_p * total)
    if options.min_p:
        kept = weights >= options.min_p * weights[0]
        order, weights = order[kept], weights[kept]
    if options.typical_p < 1.0:
        order, weights = _typical(order, weights, options.typical_p)
    return order, weights


def _suffices(weights: Floats, whole: float, options: Options) -> bool:
    """Whether tokens beyond the likeliest few cannot be chosen."""
    least = weights[-1] / weights[0]
    if least == 0:
        return True
    return options.min_p > least or (options.top_p < 1 and weights.sum() >= options.top_p * whole)


def _nucleus(order: Ints, weights: Floats, mass: float) -> tuple[Ints, Floats]:
    """Likeliest tokens up to the one with which they reach a mass."""
    count = int(weights.cumsum().searchsorted(mass)) + 1
    return order[:count], weights[:count]


def _typical(order: Ints, weights: Floats, share: float) -> tuple[Ints, Floats]:
    """Tokens whose surprise is nearest to the entropy, up to a share of the mass."""
    p = weights / weights.sum()
    surprise = -np.log(np.maximum(p, 1e-300))
    nearest = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
    count = int(p[nearest].cumsum().searchsorted(share)) + 1
    kept = np.sort(nearest[:count])
    return order[kept], weights[kept]


def _largest(scores: Floats, count: int) -> Ints:
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
