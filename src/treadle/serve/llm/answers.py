"""Answers in the words of OpenAI's interface: whole ones, and pieces of streams."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from treadle.llm.generation import Token
from treadle.serve.llm.fields import Wrong
from treadle.serve.llm.requests import TextRequest, names_of
from treadle.serve.llm.speakers import Piece, Text, Usage
from treadle.serve.llm.tool_calls import CallReader, ToolCall
from treadle.serve.protocol import RequestRefusal

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
DONE = b"data: [DONE]\n\n"


def error_content(refusal: RequestRefusal) -> dict[str, Any]:
    """An error as OpenAI's interface has it."""
    given = isinstance(refusal, Wrong)
    other = "server_error" if refusal.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(refusal),
            "type": _TYPES.get(refusal.status, other),
            "param": refusal.param if isinstance(refusal, Wrong) else None,
            "code": refusal.code if given and isinstance(refusal, Wrong) else None,
        }
    }


def event(content: object) -> bytes:
    """An event of a stream."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True)
class Delta:
    """Addition to an answer: text, a call, or its end."""

    index: int
    text: str = ""
    tokens: tuple[Token, ...] = ()
    call: tuple[int, ToolCall] | None = None
    finish: str | None = None


class AnswerWriter:
    """Writes the answers to one request.

    Args:
        asked: the request.
        model: the name of the model.
        tokenizer: tells tokens as text.
    """

    def __init__(self, asked: TextRequest, model: str, tokenizer: Text) -> None:
        self._asked, self._tokenizer = asked, tokenizer
        self._names = names_of(asked.tools)
        self._readers: dict[int, CallReader] = {}
        self._offsets: dict[int, int] = {}
        kind, number = (
            ("chatcmpl", "chat.completion") if asked.chat else ("cmpl", "text_completion")
        )
        streamed = ".chunk" if asked.chat and asked.stream else ""
        self._head = {
            "id": f"{kind}-{secrets.token_hex(12)}",
            "object": number + streamed,
            "created": int(time.time()),
            "model": model,
        }

    # -- streams -------------------------------------------------------------------------------

    def opening(self, count: int) -> Iterator[bytes]:
        """The first events: who speaks."""
        if self._asked.chat:
            for index in range(count):
                delta = {"role": "assistant", "content": ""}
                yield self._chunk({"index": index, "delta": delta, "finish_reason": None})

    def chunks(self, piece: Piece) -> Iterator[bytes]:
        """Events of a piece."""
        for delta in self.deltas(piece):
            for choice in self._streamed(delta):
                yield self._chunk(choice)

    def closing(self, usage: Usage) -> Iterator[bytes]:
        """The last events."""
        if self._asked.usage:
            yield event({**self._head, "choices": [], "usage": usage_content(usage)})
        yield DONE

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        counted = {"usage": None} if self._asked.usage else {}
        return event({**self._head, "choices": [choice], **counted})

    def _streamed(self, delta: Delta) -> Iterator[dict[str, Any]]:
        base: dict[str, Any] = {"index": delta.index}
        if not self._asked.chat:
            logprobs = self._completion_logprobs(delta.index, delta.tokens)
            yield {**base, "text": delta.text, "logprobs": logprobs, "finish_reason": delta.finish}
            return
        if delta.text or delta.tokens:
            content = {"content": delta.text}
            yield {
                **base,
                "delta": content,
                "logprobs": self._chat_logprobs(delta.tokens),
                "finish_reason": None,
            }
        if delta.call is not None:
            number, call = delta.call
            name = {"name": call.name, "arguments": ""}
            entry = {"index": number, "id": _call_id(), "type": "function", "function": name}
            yield {**base, "delta": {"tool_calls": [entry]}, "finish_reason": None}
            rest = {"index": number, "function": {"arguments": call.arguments}}
            yield {**base, "delta": {"tool_calls": [rest]}, "finish_reason": None}
        if delta.finish:
            yield {**base, "delta": {}, "finish_reason": delta.finish}

    # -- whole answers -------------------------------------------------------------------------

    def whole(self, pieces: Iterable[Piece], usage: Usage) -> dict[str, Any]:
        """The answers in one."""
        parts: dict[int, list[Delta]] = {}
        for piece in pieces:
            parts.setdefault(piece.index, []).extend(self.deltas(piece))
        choices = [self._choice(index, deltas) for index, deltas in sorted(parts.items())]
        return {**self._head, "choices": choices, "usage": usage_content(usage)}

    def _choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        tokens = tuple(token for delta in deltas for token in delta.tokens)
        finish = deltas[-1].finish
        if not self._asked.chat:
            logprobs = self._completion_logprobs(index, tokens)
            return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        calls = [delta.call[1] for delta in deltas if delta.call is not None]
        if calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {
                    "id": _call_id(),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        logprobs = self._chat_logprobs(tokens)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}

    # -- both ----------------------------------------------------------------------------------

    def deltas(self, piece: Piece) -> Iterator[Delta]:
        """Yield the additions of a piece, once calls of functions are parted from text."""
        index, text, calls = piece.index, piece.text, list[ToolCall]()
        if self._names:
            reader = self._readers.setdefault(index, CallReader(self._names))
            text = reader.push(text)
            if piece.finish:
                forced = self._asked.form is not None and self._asked.form.param == "tools"
                rest, calls = reader.finish(cut=forced and piece.finish == "length")
                text += rest
        told = piece.tokens if self._asked.options.get("logprobs") is not None else ()
        if text or told:
            yield Delta(index, text, told)
        for number, call in enumerate(calls):
            yield Delta(index, call=(number, call))
        if piece.finish:
            called = bool(calls) and piece.finish != "length"
            yield Delta(index, finish="tool_calls" if called else piece.finish)

    def _chat_logprobs(self, tokens: tuple[Token, ...]) -> dict[str, Any] | None:
        """Log-probabilities of the model itself, before anything was applied to them."""
        if not tokens:
            return None

        def told(number: int, logprob: float | None) -> dict[str, Any]:
            text = self._tokenizer.decode([number])
            return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}

        content = [
            {
                **told(token.id, token.choice.logprob),
                "top_logprobs": [told(*each) for each in token.choice.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _completion_logprobs(self, index: int, tokens: tuple[Token, ...]) -> dict[str, Any] | None:
        if not tokens:
            return None
        decode, offset = self._tokenizer.decode, self._offsets.get(index, 0)
        texts, offsets = [decode([token.id]) for token in tokens], []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offsets[index] = offset
        choices = [token.choice for token in tokens]
        tops = [
            None if each.logprob is None else {decode([n]): _finite(p) for n, p in each.top}
            for each in choices
        ]
        return {
            "tokens": texts,
            # Of the first token of a prompt that is repeated nothing is said.
            "token_logprobs": [None if c.logprob is None else _finite(c.logprob) for c in choices],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def usage_content(usage: Usage) -> dict[str, Any]:
    """Tokens of a request."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _finite(logprob: float | None) -> float:
    """JSON has no infinity; OpenAI's interface says -9999 for what cannot be."""
    return -9999.0 if logprob is None else max(logprob, -9999.0)
