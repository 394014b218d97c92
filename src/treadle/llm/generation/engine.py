"""Sequences that join and leave the steps of a model.

Each sequence has a place in the cache, and pages that hold its text. Steps take turns: one reads
the next piece of a prompt, one continues every sequence whose prompt was read, by a token or by
several that were proposed. Who asks for the next token of a sequence drives the steps of all of
them, so there is no thread of our own; several threads may ask.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.base.errors import IndexRangeError, ShapeError, TreadleError
from treadle.engine.execute.arenas import rest
from treadle.llm.generation.drafts import MOST, STEPS, Drafter, Lookup, Proposer, filled
from treadle.llm.generation.forms import AnswerForm
from treadle.llm.generation.options import Options
from treadle.llm.generation.pages import COPIED
from treadle.llm.generation.places import Place, Places
from treadle.llm.generation.sampling import choose
from treadle.llm.generation.sequence import Finish, Generation, Token
from treadle.llm.generation.stepping import Stepping

WIDTHS = (1, 8, 32, 64, 128, 256, 512)
"""Tokens of a prompt that a step reads: each has a program."""
BESIDE = 128
"""Tokens of a prompt that a step reads at most while others are being continued."""
AGAIN = 8
"""Tokens of an answer that a step reads again: so few are rounded as they were when chosen."""


class Engine:
    """Continues prompts with a model, several at a time.

    Args:
        model: with `step` and `cache`.
        sequences: how many are continued at a time; others wait.
        length: tokens of a sequence at most; the model's context where that is less.
        eos: tokens that end a text.
        cache_dtype: element type of keys and values; None: that which the model computes in.
        tokens: that may be chosen; embeddings may have more rows than a tokenizer has tokens.
        draft: a smaller model of the same tokens, whose texts are proposed.
        adapters: how many the model has.
        cache_tokens: that all sequences hold together at most, where that is less than all of
            `length`. Who finds no room waits; the oldest goes on.

    Attributes:
        lock: who has it computes with the model.
    """

    def __init__(
        self,
        model: Stepping,
        sequences: int = 1,
        length: int = 4096,
        eos: Sequence[int] = (),
        *,
        cache_dtype: str | None = None,
        tokens: int | None = None,
        draft: Stepping | None = None,
        adapters: int = 0,
        cache_tokens: int | None = None,
    ) -> None:
        most = length if cache_tokens is None else min(length, cache_tokens)
        self.length = min(most, model.context)
        self.eos = frozenset(eos)
        self._model = model
        self._cache = model.cache(sequences, self.length, cache_dtype, tokens=cache_tokens)
        self._places = Places(model, self._cache, sequences)
        self._tokens = min(tokens or model.vocabulary, model.vocabulary)
        drafter = None
        if draft is not None:
            drafter = Drafter(draft, sequences, self.length, self._tokens)
        self._proposer = Proposer(self.length, drafter)
        self._read_last = False
        self._adapters = adapters
        self._waiting: deque[Generation] = deque()
        self._numbers = itertools.count()
        self.lock = threading.Lock()

    def submit(
        self,
        prompt: Sequence[int],
        options: Options | None = None,
        sequence: int = 0,
        form: AnswerForm | None = None,
    ) -> Generation:
        """A prompt to be continued, once there is a place for it.

        Args:
            prompt: tokens.
            options: how they are continued.
            sequence: several answers to one prompt have different numbers.
            form: of the answer.

        Raises:
            ShapeError: there are no tokens, or more than fit.
            IndexRangeError: a token is not in the vocabulary, or there is no such adapter.
        """
        options = options or Options()
        if not 0 <= options.adapter <= self._adapters:
            saw = f"{options.adapter} of {self._adapters}"
            raise IndexRangeError("prompt", "there is no such adapter", saw=saw)
        tokens = self.checked(prompt)
        made = Generation(self, tokens, options, sequence, form=form)
        with self.lock:
            made.number = next(self._numbers)
            self._waiting.append(made)
        return made

    def checked(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a prompt.

        Raises:
            ShapeError, IndexRangeError: see `submit`.
        """
        tokens = tuple(int(t) for t in prompt)
        if not tokens:
            hint = "give it something that can be continued"
            raise ShapeError("prompt", "the prompt has no tokens", hint=hint)
        if len(tokens) >= self.length:
            saw = f"{len(tokens)} tokens, room for {self.length} with the answer"
            hint = "shorten the prompt, or make the context longer"
            problem = "the prompt is longer than the model's context length"
            raise ShapeError("prompt", problem, saw=saw, hint=hint)
        if min(tokens) < 0 or max(tokens) >= self._model.vocabulary:
            saw = f"tokens {min(tokens)} to {max(tokens)} of {self._model.vocabulary}"
            raise IndexRangeError("prompt", "a token is not in the vocabulary", saw=saw)
        return tokens

    def cancel(self, generation: Generation, finish: Finish) -> None:
        """End a generation, so that its place is free for others."""
        with self.lock:
            self._end(generation, finish)

    def next_of(self, generation: Generation) -> Token:
        """The next token of one, for which all that wait take steps.

        Raises:
            StopIteration: it has ended.
            NumericError: the form of the answer cannot be followed further.
        """
        while True:
            with self.lock:
                if generation.ready:
                    return generation.ready.popleft()
                if generation.failure is not None:
                    raise generation.failure
                if generation.finish:
                    raise StopIteration
                self._advance()

    # -- steps -----------------------------------------------------------------------------

    def _advance(self) -> None:
        """One step: of a prompt, or of all that are being continued; they take turns."""
        try:
            self._admit()
            reading = [p for p in self._places.used if p.is_reading]
            going = [p for p in self._places.used if not p.is_reading]
            self._read_last = bool(reading) and not (going and self._read_last)
            if self._read_last:
                # What is nearly read goes first: its first token is what somebody waits for.
                place = min(reading, key=lambda p: p.asked.read - len(p.held))
                self._read(place, BESIDE if going else WIDTHS[-1])
            elif going:
                self._continue(going)
        except BaseException:
            # What the cache holds is not known any more: nobody may build on it.
            for place in self._places.used:
                self._end(place.asked, "cancelled")
            self._places.forget()
            self._proposer.forget()
            raise

    def _admit(self) -> None:
        """Give free places to those who wait, as long as there are pages for their texts."""
        while self._waiting and self._places.admits(self._waiting[0]):
            self._waiting.popleft()

    def _reserve(self, place: Place, end: int) -> bool:
        """Make room for a text, if others have to wait for it; False if this one has to."""
        for generation in self._places.reserve(place, end):
            generation.interrupted += 1
            self._waiting.appendleft(generation)
        return place.user is not None

    def _read(self, place: Place, most: int) -> None:
        """The next piece of a prompt; what is there by now is not read."""
        generation, start = place.asked, len(place.held)
        text = generation.text
        if self._places.there(place, text[:-1], place.adapter) - start >= COPIED:
            self._places.begin(place, text[:-1], place.adapter)
            if not generation.generated:
                generation.reused += len(place.held) - start
            start = len(place.held)
        # A last token that is read by itself is rounded as it was in a prompt: answers stay equal.
        end, least = min(start + most, generation.prompted), self._model.piece
        if start >= generation.prompted:
            end, least = min(start + AGAIN, generation.read), 1
        if not self._reserve(place, end) or start >= generation.read:
            return
        piece = text[start:end]
        width = next(w for w in WIDTHS if w >= max(len(piece), least))
        tokens = np.zeros((1, width), np.int32)
        tokens[0, : len(piece)] = piece
        rows = None if len(self._places) == 1 else [place.number]
        logits = self._model.step(
            *(tokens, self._cache, [start], [len(piece)]), rows=rows, adapters=_adapters([place], 1)
        )
        place.add(piece)
        if end == len(text):
            self._take(place, logits.numpy()[0])

    def _continue(self, going: list[Place]) -> None:
        """A token of every sequence, and those proposed behind it that turn out to be right."""
        for place in sorted(going, key=lambda p: p.asked.number):
            if place.user is not None:
                self._reserve(place, len(place.held) + 1)
        going = [p for p in going if p.user is not None]
        if not going:
            return
        proposals = self._proposer.propose([p.asked for p in going])
        for i, (place, proposal) in enumerate(zip(going, proposals, strict=True)):
            if not place.held.reserve(len(place.held) + 1 + len(proposal)):
                proposals[i] = []
        count = 1 + max(map(len, proposals))
        width = next(w for w in STEPS if w >= count)
        rows = filled([p.number for p in going], len(self._places))
        tokens = np.zeros((len(rows), width), np.int32)
        starts, counts = np.zeros((2, len(rows)), np.int32)
        for i, (place, proposal) in enumerate(zip(going, proposals, strict=True)):
            given = [place.asked.text[-1], *proposal]
            starts[i], counts[i] = len(place.held), len(given)
            tokens[i, : len(given)] = given
        logits = self._model.step(
            *(tokens, self._cache, starts, counts),
            rows=None if len(self._places) == 1 else rows,
            all=width > 1,
            adapters=_adapters(going, len(rows)),
        ).numpy()
        for place, proposal, found in zip(going, proposals, logits, strict=False):
            self._verify(place, proposal, found.reshape(width, -1))

    def _verify(self, place: Place, proposal: Sequence[int], logits: Any) -> None:
        """Choose tokens as long as what was read is what was chosen."""
        generation = place.asked
        place.add(generation.text[-1:], more=len(proposal))
        accepted = 0
        for i, row in enumerate(logits[: len(proposal) + 1]):
            length = len(generation.text)
            self._take(place, row)
            if generation.finish or len(generation.text) != length + 1 or i == len(proposal):
                break
            if generation.text[-1] != proposal[i]:
                break
            place.add(proposal[i : i + 1])
            accepted += 1
        if proposal:
            generation.proposed += len(proposal)
            generation.accepted += accepted
            generation.reach = MOST if accepted == len(proposal) else accepted + 1

    def _take(self, place: Place, logits: Any) -> None:
        """Choose a token."""
        generation = place.user
        assert generation is not None  # noqa: S101  (asked of places in use)
        options, form = generation.options, generation.form
        try:
            found = choose(
                logits[: self._tokens],
                *(options, generation.prompt, generation.generated, generation.sequence),
                None if form is None else form.allowed()[: self._tokens],
            )
            if form is not None:
                form.take(found.token)
        except TreadleError as error:  # of this answer alone
            generation.failure = error
            self._end(generation, "cancelled")
            return
        if not generation.generated:
            generation.first = time.perf_counter() - generation.begun
        if found.token in self.eos and (form is not None or not options.ignore_eos):
            self._end(generation, "stop")
            return
        generation.generated.append(found.token)
        generation.text.append(found.token)
        generation.ready.append(Token(found.token, found))
        if form is not None and form.ended:
            self._end(generation, "stop")
            return
        full = len(generation.text) >= self.length
        enough = len(generation.generated) == options.max_tokens
        if full and options.shift is not None and not enough:
            self._shift(place, options.shift)
        elif full or enough:
            self._end(generation, "length")

    def _shift(self, place: Place, kept: int) -> None:
        """Drop the older half of a text, behind its first tokens; the rest is read again."""
        generation = place.asked
        text, kept = generation.text, min(kept, self.length // 2)
        place.held.begin((), place.adapter)
        place.rings.cut(0)
        generation.text = text[:kept] + text[kept + (len(text) - kept + 1) // 2 :]
        generation.prompted, generation.lookup = len(generation.text), Lookup()

    def _end(self, generation: Generation, finish: Finish) -> None:
        if generation.finish:
            return
        generation.finish = finish
        if generation in self._waiting:
            self._waiting.remove(generation)
        if generation.place >= 0:
            self._places[generation.place].leave()
        if not self._waiting and not self._places.used:
            rest()  # Scratch memory of a long prompt, which nobody may ask for soon.


def _adapters(places: Sequence[Place], rows: int) -> list[int] | None:
    """Return the rows' numbers of adapters, filled up with 0; None if nobody has one."""
    numbers = [p.adapter for p in places]
    return numbers + [0] * (rows - len(numbers)) if any(numbers) else None
