"""Requests in the words of OpenAI's interface: read, and believed after a look."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.base.errors import NumericError
from treadle.base.files.strict_json import parse, shorten
from treadle.base.log import get_logger
from treadle.llm.generation.options import MOST_LOGPROBS, Options
from treadle.serve.llm.fields import (
    Wrong,
    list_of,
    mistyped,
    number_of,
    switch_of,
    text_of,
    texts_of,
)
from treadle.serve.llm.wanted_forms import Tools, WantedForm, read_tools, wanted_form

_MOST_ANSWERS = 8
"""Answers to one prompt."""
_MOST_PROMPTS = 64
_MOST_STOPS, _MOST_STOP = 16, 1000
_MOST_BIASES = 1024
_ROLES = ("system", "developer", "user", "assistant", "tool")
_COMPLETION_TOKENS = 16
"""Number of tokens where a completion does not say one; OpenAI's default."""

_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty"),
)
_WHOLE = frozenset(("top_k",))
_READ = frozenset(
    (
        *(
            "model",
            "messages",
            "prompt",
            "max_tokens",
            "max_completion_tokens",
            "n",
            "seed",
            "stop",
        ),
        *("stream", "stream_options", "logprobs", "top_logprobs", "logit_bias", "ignore_eos"),
        *("response_format", "tools", "tool_choice", "echo", "suffix", "best_of", *_SAMPLING),
        *(
            "parallel_tool_calls",
            "user",
            "input",
            "encoding_format",
            "dimensions",
            "functions",
            "function_call",
        ),
    )
)


@dataclass(frozen=True)
class TextRequest:
    """A request for text.

    Attributes:
        chat: whether a conversation is continued; else prompts are.
        messages, tools: of a conversation.
        prompts: texts, or tokens.
        form: of each answer.
        options: changes of the model's `Options`.
        count: answers to each prompt.
        stream: whether pieces are sent as they come.
        usage: whether a stream ends with counts of tokens.
        echo: whether a prompt is repeated before its answers.
        silent: whether nothing is said behind it.
    """

    chat: bool
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    form: WantedForm | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1
    stream: bool = False
    usage: bool = False
    echo: bool = False
    silent: bool = False


def read_object(body: memoryview, most: int) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        Wrong: it is none, or too long.
    """
    if len(body) > most:
        raise Wrong(f"the JSON has {len(body)} bytes, {most} are taken", status=413)
    try:
        content = parse(bytes(body))
    except ValueError as error:
        raise Wrong(f"the JSON is malformed: {error}") from None
    if not isinstance(content, dict):
        raise Wrong("the JSON is not an object")
    unknown = [name for name in content if name not in _READ]
    if unknown:
        get_logger().debug("fields that are not known: %s", ", ".join(map(shorten, unknown[:8])))
    return content


def read_chat(content: Mapping[str, Any]) -> TextRequest:
    """A request of `/v1/chat/completions`.

    Raises:
        Wrong: a field is.
    """
    if content.get("functions") or content.get("function_call"):
        raise Wrong("functions are said as tools, function_call as tool_choice", "functions")
    options = _options(content)
    most = number_of(content, "max_completion_tokens", whole=True)
    if most is not None:
        options["max_tokens"] = most
    if switch_of(content, "logprobs"):
        shown = number_of(content, "top_logprobs", 0, MOST_LOGPROBS, whole=True)
        options["logprobs"] = shown or 0
    elif content.get("top_logprobs"):
        raise Wrong("top_logprobs needs logprobs: true", "top_logprobs")
    tools = read_tools(content)
    return TextRequest(
        chat=True,
        messages=_messages(content),
        tools=tools.offered,
        form=wanted_form(content, tools),
        options=_checked(options),
        count=_count(content),
        stream=switch_of(content, "stream"),
        usage=_usage(content),
    )


def read_completion(content: Mapping[str, Any]) -> TextRequest:
    """A request of `/v1/completions`.

    Raises:
        Wrong: a field is.
    """
    if content.get("suffix"):
        raise Wrong("suffix is not there: texts are continued at their end", "suffix")
    best = number_of(content, "best_of", whole=True)
    if best is not None and best != _count(content):
        raise Wrong("best_of is not there, other than as n", "best_of")
    echo = switch_of(content, "echo")
    options = {"max_tokens": _COMPLETION_TOKENS, **_options(content)}
    silent = echo and options["max_tokens"] == 0
    if silent:
        del options["max_tokens"]
    logprobs = content.get("logprobs")
    if logprobs is not None and logprobs is not False:
        options["logprobs"] = number_of(content, "logprobs", 0, MOST_LOGPROBS, whole=True)
        if echo and options.get("max_tokens") == 1:
            options["ignore_eos"] = True  # lm-eval takes the last token for the one that was added
    return TextRequest(
        chat=False,
        echo=echo,
        silent=silent,
        prompts=texts_of(content, "prompt", _MOST_PROMPTS),
        form=wanted_form(content, Tools()),
        options=_checked(options),
        count=_count(content),
        stream=switch_of(content, "stream"),
        usage=_usage(content),
    )


# -- fields ------------------------------------------------------------------------------------


def _options(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read the options that both addresses share."""
    found: dict[str, Any] = {}
    for name in _SAMPLING:
        value = number_of(content, name, whole=name in _WHOLE)
        if value is not None:
            found[name] = value
    most = number_of(content, "max_tokens", whole=True)
    if most is not None:
        found["max_tokens"] = most
    seed = number_of(content, "seed", -(2**63), 2**64 - 1, whole=True)
    found["seed"] = secrets.randbits(63) if seed is None else int(seed) % 2**64
    found["stop"] = _stops(content)
    found["logit_bias"] = _biases(content)
    found["ignore_eos"] = switch_of(content, "ignore_eos")
    return found


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Options that are each in their range."""
    for name, value in options.items():
        try:
            Options().changed(**{name: value})
        except NumericError as error:
            raise Wrong(f"{error.problem}, not {shorten(str(value))}", name) from None
    return options


def _count(content: Mapping[str, Any]) -> int:
    return int(number_of(content, "n", 1, _MOST_ANSWERS, whole=True) or 1)


def _usage(content: Mapping[str, Any]) -> bool:
    options = content.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        mistyped("stream_options", "an object", options)
    return switch_of(options, "include_usage")


def _stops(content: Mapping[str, Any]) -> tuple[str, ...]:
    value = content.get("stop")
    if value is None or value == []:
        return ()
    given = [value] if isinstance(value, str) else list_of(value, "stop", _MOST_STOPS)
    texts = tuple(text_of(each, "stop") for each in given)
    if max(map(len, texts)) > _MOST_STOP:
        raise Wrong(f"stop has more than {_MOST_STOP} characters", "stop")
    return texts


def _biases(content: Mapping[str, Any]) -> dict[int, float]:
    value = content.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MOST_BIASES:
        raise Wrong(f"logit_bias is an object of at most {_MOST_BIASES} tokens", "logit_bias")
    found = {}
    for key in value:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise Wrong(f"{shorten(key)} in logit_bias is not a token's number", "logit_bias")
        named = f"logit_bias.{key}"
        found[int(key)] = float(number_of({named: value[key]}, named, -100, 100) or 0)
    return found


def _messages(content: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    given = list_of(content.get("messages"), "messages", 4096)
    return tuple(_message(each, f"messages[{i}]") for i, each in enumerate(given))


def _message(value: Any, where: str) -> dict[str, Any]:
    """A message for templates: its content is text or None, arguments of calls are objects."""
    if not isinstance(value, dict):
        mistyped(where, "an object", value)
    role = value.get("role")
    if role not in _ROLES:
        mistyped(f"{where}.role", ", ".join(_ROLES), role)
    made = {"role": "system" if role == "developer" else role}
    content = value.get("content")
    made["content"] = None if content is None else _content(content, f"{where}.content")
    for name in ("name", "tool_call_id"):
        if value.get(name) is not None:
            made[name] = text_of(value[name], f"{where}.{name}")
    calls = value.get("tool_calls")
    if calls:
        place = f"{where}.tool_calls"
        made["tool_calls"] = [_call(c, place) for c in list_of(calls, place, 128)]
    elif content is None:
        raise Wrong(f"{where} has no content", f"{where}.content")
    return made


def _content(value: Any, where: str) -> str:
    """The text of a message, which may come in parts."""
    if not isinstance(value, list):
        return text_of(value, where)
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else part
            raise Wrong(f"{where} has a part of type {shorten(str(kind))}; texts are read", where)
        texts.append(text_of(part.get("text"), where))
    return "".join(texts)


def _call(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        raise Wrong(f"{where} has an entry without a function", where)
    arguments = text_of(function.get("arguments", "{}"), where)
    try:
        parsed = parse(arguments.encode())
    except ValueError as error:
        raise Wrong(f"{where} has arguments that are not JSON: {error}", where) from None
    named = {"name": text_of(function.get("name"), where), "arguments": parsed}
    return {"id": text_of(value.get("id", ""), where), "type": "function", "function": named}


def names_of(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of tools."""
    return frozenset(tool["function"]["name"] for tool in tools)
