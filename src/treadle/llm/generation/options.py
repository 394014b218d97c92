"""Options of generation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, cast

from treadle.base.errors import NumericError

MOST_LOGPROBS = 20
"""As many as OpenAI's interface has."""


@dataclass(frozen=True)
class Options:
    """Options of choosing tokens and of ending an answer.

    What is applied, in this order: the logit bias, penalties, temperature, then top-k, top-p,
    min-p and typical, each to what the one before left. With temperature 0 the likeliest token is
    taken, and nothing behind the penalties matters.

    Attributes:
        max_tokens: at most so many tokens; None: as many as fit.
        temperature: what logits are divided by.
        top_k: only the k likeliest tokens; 0 for all.
        top_p: only the smallest set of likeliest tokens whose probabilities reach it together.
        min_p: only tokens that are so likely compared with the likeliest.
        typical_p: only tokens whose surprise is nearest to the expected one, of that mass together.
        repetition_penalty: divides positive logits of tokens that occurred, prompt included, and
            multiplies negative ones.
        presence_penalty, frequency_penalty: subtracted from logits of generated tokens, once and
            for each occurrence.
        logit_bias: added to logits, by token.
        seed: of the random numbers, which depend on it and on the position alone: other sequences
            beside this one change nothing.
        stop: texts that end the answer, and are not part of it.
        ignore_eos: go on after tokens that end a text.
        logprobs: how many of the likeliest tokens are told with their log-probabilities, before
            anything was applied; None for none, 0 for the chosen token alone.
        lookup: propose up to so many tokens, at most 7, that followed where the last ones stood
            before. Proposals change no token that is chosen, only how many a step gives.
        draft: up to so many, at most 7, of a draft model, where there is one.
        shift: where the context is full, the older half of the text is dropped but for so many
            tokens at its beginning, and the rest is read again; None: the text ends.
        adapter: of those that the model was loaded with, counted from 1; 0: none. `LanguageModel`
            takes its name.
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    lookup: int = 0
    draft: int = 7
    shift: int | None = None
    adapter: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not _lies_in(value, low, high):
                wanted = f"{low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
                raise _wrong(f"{name} is {wanted}", value, "give such a number")
        stop, biases = cast(Any, self.stop), cast(Any, self.logit_bias)  # Of whoever calls.
        if isinstance(stop, bytes) or not _all(stop, str):
            raise _wrong("stop is a text or several", stop, "stop=['.', '!']")
        if not isinstance(biases, Mapping) or not _all(biases, Integral):
            raise _wrong("logit_bias has numbers of tokens", biases, "logit_bias={13: -5.0}")
        for token, bias in self.logit_bias.items():
            if not _lies_in(bias, -math.inf, math.inf) and bias != -math.inf:
                raise _wrong(f"logit_bias of {token} is a number", bias, "-inf forbids a token")
        if not self.top_p or not self.typical_p or not self.repetition_penalty:
            hint = "1.0 switches each of them off"
            raise NumericError(
                "options", "top_p, typical_p and repetition_penalty are above 0", hint=hint
            )
        object.__setattr__(self, "stop", tuple(t for t in self.stop if t))

    def changed(self, **changes: Any) -> Options:
        """Return the options with other values.

        Raises:
            NumericError: a value is out of range, or there is no such option.
        """
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                hint = f"there are {', '.join(sorted(known))}"
                raise NumericError("options", f"there is no option {name!r}", hint=hint)
        if isinstance(changes.get("stop"), str):
            changes["stop"] = (changes["stop"],)
        return replace(self, **changes)


def _lies_in(value: Any, low: float, high: float) -> bool:
    return isinstance(value, Real) and math.isfinite(value) and low <= cast(Any, value) <= high


def _all(given: Any, kind: type) -> bool:
    return isinstance(given, Iterable) and all(isinstance(each, kind) for each in given)


def _wrong(problem: str, value: object, hint: str) -> NumericError:
    return NumericError("options", problem, saw=repr(value)[:60], hint=hint)


_RANGES: dict[str, tuple[float, float]] = {
    "max_tokens": (1, math.inf),
    "temperature": (0, 100),
    "top_k": (0, math.inf),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (0, 100),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "seed": (0, 2**64 - 1),
    "logprobs": (0, MOST_LOGPROBS),
    "lookup": (0, 7),
    "draft": (0, 7),
    "shift": (0, math.inf),
}


def options_of(generation: Mapping[str, Any]) -> Options:
    """Return the options of a model's generation_config.json; greedy where it does not sample."""
    names = ("top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
    given = {n: generation[n] for n in names if isinstance(generation.get(n), int | float)}
    if generation.get("do_sample"):
        given["temperature"] = float(generation.get("temperature") or 1.0)
    return Options().changed(**given)
