"""`load`: a language model with its tokenizer, ready to answer."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import Any

from treadle.base.errors import (
    CheckpointError,
    DTypeError,
    IndexRangeError,
    LoadError,
    NumericError,
)
from treadle.llm.files import ModelCheckpoint, open_checkpoint
from treadle.llm.generation.engine import Engine
from treadle.llm.generation.forms import KINDS, AnswerForm, Forms
from treadle.llm.generation.options import Options, options_of
from treadle.llm.generation.sampling import SampledToken
from treadle.llm.generation.scoring import Scorer
from treadle.llm.generation.text_stream import TextStream
from treadle.llm.models import DecoderModel, build
from treadle.llm.models.families import ENCODERS
from treadle.llm.models.stacked import Stacked
from treadle.llm.text import Template, Tokenizer
from treadle.llm.tuning.files import read_adapter
from treadle.runtime.host import give_back

Message = Mapping[str, Any]
Paths = Mapping[str, str | os.PathLike[str]]
"""Directories of adapters by name."""


class LanguageModel:
    """A model that continues text.

    Attributes:
        path: of the file or directory.
        model: what computes logits.
        tokenizer, template: between text, conversations and tokens; a base model has no template.
        engine: what continues sequences.
        defaults: options where none are given: those of the file, else the likeliest tokens.
    """

    def __init__(
        self,
        checkpoint: ModelCheckpoint,
        model: DecoderModel,
        tokenizer: Tokenizer,
        *,
        sequences: int = 1,
        context: int = 4096,
        cache_dtype: str | None = None,
        cache_tokens: int | None = None,
        draft: LanguageModel | None = None,
        adapters: Paths | None = None,
    ) -> None:
        self.path = checkpoint.path
        self.model = model
        self.tokenizer = tokenizer
        source = checkpoint.chat_template
        self.template = None if source is None else Template(source, self.tokenizer)
        self.defaults = options_of(checkpoint.generation)
        asked = checkpoint.generation.get("eos_token_id") or ()
        ends = {*self.tokenizer.eos, *([asked] if isinstance(asked, int) else asked)}
        if draft is not None and not self.tokenizer.is_like(draft.tokenizer):
            hint = "take a smaller model of the same family"
            problem = "as a draft, its tokens are not those of the model"
            raise CheckpointError(draft.path, problem, hint=hint)
        self.adapters = tuple(adapters or ())
        self._adapter: str | None = None
        if adapters:
            products = model.stack.products()
            read = [read_adapter(path, products).scaled() for path in adapters.values()]
            model.adapters = Stacked(read)
        self.engine = Engine(
            *(model, sequences, context, sorted(ends)),
            cache_dtype=cache_dtype,
            cache_tokens=cache_tokens,
            tokens=self.tokenizer.end,
            draft=None if draft is None else draft.model,
            adapters=len(self.adapters),
        )
        self._cache_dtype = cache_dtype
        self._scorer = Scorer(model, self.engine, cache_dtype, self.tokenizer.end)
        self._forms = Forms(self.tokenizer, model.vocabulary, ends)

    @classmethod
    def of(
        cls,
        checkpoint: ModelCheckpoint,
        dtype: str = "stored",
        *,
        sequences: int = 1,
        context: int = 4096,
        prompts: str | None = None,
        cache_dtype: str | None = None,
        cache_tokens: int | None = None,
        draft: LanguageModel | None = None,
        adapters: Paths | None = None,
    ) -> LanguageModel:
        """The model in a checkpoint; see `load`."""
        if checkpoint.config.get("model_type") in ENCODERS:
            problem = "the model makes vectors of texts, and does not continue them"
            raise CheckpointError(checkpoint.path, problem, hint="use llm.load_embedder")
        if checkpoint.tokenizer is None:
            raise checkpoint.no_tokenizer()  # before weights are read
        tokenizer = Tokenizer.of(checkpoint.tokenizer)
        model = build(checkpoint, dtype, prompts)
        return cls(
            *(checkpoint, model, tokenizer),
            sequences=sequences,
            context=context,
            cache_dtype=cache_dtype,
            cache_tokens=cache_tokens,
            draft=draft,
            adapters=adapters,
        )

    def adapted(self, name: str | None) -> LanguageModel:
        """Return this model with one of its adapters as default; both share all memory.

        Raises:
            LoadError: there is no such adapter.
        """
        self._number(name)
        made = copy.copy(self)
        made._adapter = name
        return made

    def stream(self, prompt: str | Sequence[int], **options: Any) -> TextStream:
        """The continuation of a text or of tokens, piece by piece.

        Args:
            prompt: text, in which special tokens are plain text; or tokens.
            options: those of `Options`, and the form of the answer, see `form`.

        Raises:
            NumericError: an option is out of range, or a form malformed.
            ShapeError: the prompt is longer than the context.
        """
        return self._stream(self._tokens(prompt), options)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> str:
        """The continuation, whole; see `stream`."""
        return "".join(self.stream(prompt, **options))

    def score(
        self, prompt: str | Sequence[int], *, top: int = 0, adapter: str | None = None
    ) -> Iterator[SampledToken]:
        """Tokens of a text with their log-probabilities, each after those before it.

        Args:
            prompt: text, in which special tokens are plain text; or tokens.
            top: how many of the likeliest tokens are told in each place.
            adapter: what they are read with, where it is not that of `adapted`.

        Raises:
            ShapeError: the prompt is longer than the context.
        """
        tokens = self._tokens(prompt)
        return self._scorer.score(tokens, adapter=self._number(adapter or self._adapter), top=top)

    def explain(self, tokens: int = 1, behind: int = 0, *, full: bool = False) -> str:
        """Explain the program of a step, as text: its stages, groups, kernels and memory.

        Args:
            tokens: that are read at once; 1 where an answer goes on.
            behind: tokens that are there before.
            full: every group, op and pass in a row of its own.

        Raises:
            ShapeError: the model was made for fewer tokens.
        """
        program = self.model.inspected(tokens, behind, self._cache_dtype)
        return program.explained(full=full)

    def stream_chat(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **options: Any
    ) -> TextStream:
        """The answer in a conversation, piece by piece.

        Args:
            messages: objects with `role` ("system", "user" or "assistant") and `content`, a text
                or parts {"type": "text", "text": ...}.
            tools: functions that the model may ask for, as its template takes them.
            options: those of `Options`, and the form of the answer, see `form`.

        Raises:
            DTypeError: these are no messages.
            CheckpointError: the model has no template of conversations, or it refuses them.
        """
        return self._stream(self.conversation(messages, tools), options)

    def chat(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, **options: Any
    ) -> str:
        """The answer, whole; see `stream_chat`."""
        return "".join(self.stream_chat(messages, tools, **options))

    def conversation(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> list[int]:
        """The tokens of a conversation, up to where the answer begins.

        Raises:
            DTypeError: these are no messages.
            CheckpointError: the model has no template, or it refuses them.
        """
        if self.template is None:
            hint = "continue texts (generate, treadle llm run), or take a model tuned for chats"
            problem = "the model has no template of conversations"
            raise CheckpointError(self.path, problem, hint=hint)
        given = [_message(m) for m in _listed(messages)]
        # Some templates ask whether the content is None; others would write the word.
        plain = [{**m, "content": ""} if _only_calls(m) else m for m in given]
        try:
            text = self.template.render(given if self.template.asks_for_none else plain, tools)
        except CheckpointError:
            if plain == given:
                raise
            text = self.template.render(plain, tools)
        return self.tokenizer.encode(text, special=True)

    def options(self, **changes: Any) -> Options:
        """The defaults, changed; `adapter` is a name, or None.

        Raises:
            LoadError: there is no such adapter.
            NumericError: an option is out of range.
            IndexRangeError: a token of `logit_bias` is not in the vocabulary.
        """
        number = self._number(changes.pop("adapter", self._adapter))
        made = self.defaults.changed(adapter=number, **changes)
        beyond = [t for t in made.logit_bias if not 0 <= t < self.model.vocabulary]
        if beyond:
            saw = f"{beyond[0]} of {self.model.vocabulary}"
            raise IndexRangeError("logit_bias", "a token is not in the vocabulary", saw=saw)
        return made

    def _tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """The tokens of a prompt, which may be tokens."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        try:
            if isinstance(prompt, bytes | bytearray | memoryview):  # Not tokens, though numbers.
                raise TypeError
            return [index(t) for t in prompt]
        except TypeError:
            hint = "give a text, or whole numbers"
            saw = repr(prompt)[:60]
            problem = "is neither a text nor tokens"
            raise DTypeError("prompt", problem, saw=saw, hint=hint) from None

    def _number(self, name: str | None) -> int:
        if name is None:
            return 0
        if name not in self.adapters:
            hint = f"it was loaded with {', '.join(self.adapters) or 'none'}"
            raise LoadError("adapter", "the model has no such adapter", saw=repr(name), hint=hint)
        return 1 + self.adapters.index(name)

    def form(
        self, *, schema: Any = None, grammar: Any = None, regex: Any = None
    ) -> AnswerForm | None:
        """The form of one answer, for `engine.submit`; None where none is given.

        Args:
            schema: of JSON: an object, its text or a class of pydantic.
            grammar: in llguidance's dialect of Lark.
            regex: of the whole answer.

        Raises:
            NumericError: it is malformed or too complicated, or there are several.
            LoadError: llguidance is not installed.
        """
        values = zip(KINDS, (schema, grammar, regex), strict=True)
        given = [(kind, value) for kind, value in values if value is not None]
        if len(given) > 1:
            saw = " and ".join(kind for kind, _ in given)
            raise NumericError("form", "an answer has one form", saw=saw)
        return self._forms.form(*given[0]) if given else None

    def _stream(self, tokens: Sequence[int], options: dict[str, Any]) -> TextStream:
        form = self.form(**{kind: options.pop(kind) for kind in KINDS if kind in options})
        generation = self.engine.submit(tokens, self.options(**options), form=form)
        return TextStream(generation, self.tokenizer.stream())


def _listed(messages: Any) -> Sequence[Message]:
    """Refuse what is no list of messages."""
    listed = isinstance(messages, list | tuple)
    if listed and all(isinstance(m, Mapping) and "role" in m for m in messages):
        found: Sequence[Message] = messages
        return found
    hint = 'give a list like [{"role": "user", "content": "Hello"}]'
    raise DTypeError("messages", "are no conversation", saw=repr(messages)[:60], hint=hint)


def _only_calls(message: Message) -> bool:
    """Return whether a message has calls of tools in place of a content."""
    return message.get("content") is None and "tool_calls" in message


def _message(message: Message) -> Message:
    """A message as templates expect it: its content is a text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [p.get("text") for p in content if isinstance(p, Mapping) and p.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(t, str) for t in texts):
        hint = 'parts are {"type": "text", "text": "..."}: pictures and sound are not read'
        saw = repr(content)[:60]
        raise DTypeError("messages", "the content is no text", saw=saw, hint=hint)
    return {**message, "content": "".join(map(str, texts))}


def load(
    path: str | os.PathLike[str],
    dtype: str = "stored",
    *,
    sequences: int = 1,
    context: int = 4096,
    prompts: str | None = None,
    cache_dtype: str | None = None,
    cache_tokens: int | None = None,
    draft: str | os.PathLike[str] | None = None,
    adapters: Paths | None = None,
) -> LanguageModel:
    """A language model from a GGUF file, or from a directory as Hugging Face has them.

    Args:
        path: of the file or directory.
        dtype: "stored": quantized weights and floats of 16 bits stay what they are; "float32" or
            "bfloat16" is what all are widened or rounded to.
        sequences: how many texts are continued at a time.
        context: tokens of a text at most, prompt included; memory is taken as they come.
        prompts: what activations are rounded to while prompts meet quantized weights: "bfloat16"
            (left out: where the processor multiplies it), or "int16", which is nearly exact.
        cache_dtype: what keys and values of tokens are kept in, "float32", "bfloat16", "float16"
            or "int8" with a scale for each token and head;
            None: what the model computes in.
        cache_tokens: tokens that all texts hold together at most, where that is less than
            `sequences` times `context`. Who finds no room waits, those who came first go on.
        draft: a smaller model with the same tokens. It proposes what may follow, so that a step of
            the larger one gives several tokens; which ones does not depend on it.
        adapters: directories of `peft` by names that `adapter=` of `generate` and others takes.
            Texts with different adapters are continued together.

    Raises:
        CheckpointError: a file is damaged, or a family of models that is not known; the draft has
            other tokens.
        OSError: a file cannot be read.

    Example:
        model = llm.load("smollm2.gguf")
        print(model.chat([{"role": "user", "content": "What is the capital of France?"}]))
    """
    made = LanguageModel.of(
        open_checkpoint(path),
        dtype,
        sequences=sequences,
        context=context,
        prompts=prompts,
        cache_dtype=cache_dtype,
        cache_tokens=cache_tokens,
        draft=None if draft is None else load(draft, dtype, context=8),
        adapters=adapters,
    )
    give_back()  # tables of the tokenizer, which its library has now
    return made
