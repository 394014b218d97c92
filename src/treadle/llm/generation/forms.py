"""Answers of a given form: JSON of a schema, a grammar, a regular expression.

The library llguidance says which tokens may come; the engine takes one of these.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from treadle.base.errors import NumericError
from treadle.llm.text import Tokenizer
from treadle.llm.text.packages import needed

Bools: TypeAlias = npt.NDArray[np.bool_]

KINDS = ("schema", "grammar", "regex")
"""Kinds of forms."""
_KEPT = 32
"""Forms that are kept, compiled."""
_LONGEST = 1 << 18
"""Characters of a form."""
_SPACE = r"[ ]|\n[ ]{0,24}"
"""Between parts of JSON: endless spaces would satisfy any schema."""


class AnswerForm:
    """State of an answer in its form; for one answer.

    Attributes:
        ended: whether nothing more may come.
    """

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros((vocabulary + 31) // 32, np.int32)
        self._vocabulary = vocabulary
        self.ended = False

    def allowed(self) -> Bools:
        """Return which tokens may come next, by their numbers.

        Raises:
            NumericError: the form is too complicated.
        """
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        return bits[: self._vocabulary].view(np.bool_)

    def take(self, token: int) -> None:
        """Go on by a token that was allowed.

        Raises:
            NumericError: it was not, or the form is too complicated.
        """
        self._matcher.consume_token(token)
        self._check()
        self.ended = bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            # Behind the first words the library prints what it stands at.
            said = self._matcher.get_error().partition("<state>")[0]
            raise _wrong("the form cannot be followed, or there is no text of it", said)


class Forms:
    """Forms of the answers of a model.

    Args:
        tokenizer: of the model.
        vocabulary: of the model, which may be larger.
        ends: tokens that end a text.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, ends: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._ends = sorted(ends)
        self._lock = threading.Lock()
        self._words: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def form(self, kind: str, given: Any) -> AnswerForm:
        """A form of its own for one answer.

        Args:
            kind: "schema", "grammar" or "regex".
            given: a schema of JSON as object or text, or a class of pydantic; a grammar in
                llguidance's dialect of Lark; a regular expression of the whole answer.

        Raises:
            NumericError: it is malformed, unknown or too complicated.
            LoadError: llguidance is not installed.
        """
        library = needed("llguidance")
        text = _text_of(kind, given)
        if len(text) > _LONGEST:
            raise _wrong(f"the {kind} is too long", f"{len(text)} characters of {_LONGEST}")
        try:
            if kind == "schema":
                spaces = {"whitespace_pattern": _SPACE}
                text = library.LLMatcher.grammar_from_json_schema(text, defaults=spaces)
            elif kind == "regex":
                text = library.LLMatcher.grammar_from_regex(text)
            return AnswerForm(self._matcher(library, kind, text), self._vocabulary)
        except ValueError as error:  # half a surrogate pair
            raise _wrong(f"the {kind} cannot be followed", str(error)) from None

    def _matcher(self, library: Any, kind: str, grammar: str) -> Any:
        """One that stands at the beginning."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found.deep_copy()
            if self._words is None:
                self._words = self._read_words(library)
        made = library.LLMatcher(self._words, grammar, log_level=0)
        if made.is_error():
            raise _wrong(f"the {kind} cannot be followed", made.get_error())
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made.deep_copy()

    def _read_words(self, library: Any) -> Any:
        """The tokenizer's words, as the library wants them; this takes a second."""
        try:
            return library.LLTokenizer(
                self._tokenizer.as_json(), n_vocab=self._vocabulary, eos_token=self._ends
            )
        except ValueError as error:
            raise _wrong("answers of this tokenizer cannot be given a form", str(error)) from None


def _text_of(kind: str, given: Any) -> str:
    """A form as text."""
    if kind == "schema":
        if hasattr(given, "model_json_schema"):
            given = given.model_json_schema()
        if isinstance(given, Mapping):
            return json.dumps(given)
        try:
            parsed = json.loads(given)
        except (TypeError, ValueError) as error:
            raise _wrong("the schema is not JSON", str(error)) from None
        if not isinstance(parsed, dict | bool):
            raise _wrong("the schema is not an object", str(parsed))
    if not isinstance(given, str):
        raise _wrong(f"the {kind} is not text", type(given).__name__)
    return given


def _wrong(problem: str, saw: str) -> NumericError:
    said = " ".join(saw.split())
    return NumericError("form", problem, saw=said if len(said) <= 200 else f"{said[:200]} ...")
