"""The forms that requests want answers in: `response_format`, and calls of functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.base.files.strict_json import shorten
from treadle.serve.llm.fields import Wrong, list_of, mistyped, text_of

_OBJECT = {"type": "object"}
_MOST_TOOLS = 128
_MAPS, _LISTS = ("properties", "$defs", "definitions"), ("anyOf", "oneOf", "prefixItems")
"""Words of a schema behind which there are named schemas, and lists of them."""
_JOINED = re.compile(r'"(allOf|if|not|dependentSchemas|unevaluatedProperties)":')
"""Words of schemas that describe an object by several."""


@dataclass(frozen=True)
class WantedForm:
    """A schema of JSON, as text, and the field of the request that asks for it."""

    schema: str
    param: str


@dataclass(frozen=True)
class Tools:
    """Functions that a request offers.

    Attributes:
        offered: as templates take them.
        forced: those of which one is to be called; empty where text will do.
    """

    offered: tuple[dict[str, Any], ...] = ()
    forced: tuple[dict[str, Any], ...] = ()


def read_tools(content: Mapping[str, Any]) -> Tools:
    """`tools` and `tool_choice`.

    Raises:
        Wrong: a field is.
    """
    choice, given = content.get("tool_choice"), content.get("tools")
    if not isinstance(choice, dict) and choice not in (None, "auto", "none", "required"):
        mistyped("tool_choice", "auto, none, required or a function", choice)
    if not given:
        if choice not in (None, "auto", "none"):
            raise Wrong("tool_choice asks for a call, and there are no tools", "tool_choice")
        return Tools()
    found = tuple(
        _tool(tool, f"tools[{i}]") for i, tool in enumerate(list_of(given, "tools", _MOST_TOOLS))
    )
    if choice == "none":
        return Tools()
    if choice == "required":
        return Tools(found, found)
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        named = tuple(tool for tool in found if tool["function"]["name"] == name)
        if choice.get("type") != "function" or not named:
            known = ", ".join(tool["function"]["name"] for tool in found)
            told = f"tool_choice names {shorten(str(name))}, and there are {known}"
            raise Wrong(told, "tool_choice")
        return Tools(found, named[:1])
    return Tools(found)


def _tool(tool: Any, where: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function":
        raise Wrong(f"{where} is not a function", "tools")
    name = text_of(function.get("name"), f"{where}.function.name")
    if not 1 <= len(name) <= 256:
        raise Wrong(
            f"{where}.function.name has {len(name)} characters, 1 to 256 are taken", "tools"
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        mistyped(f"{where}.function.parameters", "an object", parameters)
    return dict(tool)


def wanted_form(content: Mapping[str, Any], tools: Tools) -> WantedForm | None:
    """The form of the answer; None where any text will do.

    Raises:
        Wrong: a field is.
    """
    schema = _schema(content.get("response_format"))
    calls = [_call(tool, i) for i, tool in enumerate(tools.forced or tools.offered)]
    if tools.forced:
        return WantedForm(_any_of(calls), "tools")
    if schema is None:
        return None
    return WantedForm(_any_of([*calls, _document(schema, "answer")]), "response_format")


def _schema(value: Any) -> dict[str, Any] | None:
    """The schema of a `response_format`."""
    kind = value.get("type") if isinstance(value, dict) else value
    if kind == "json_object":
        given = value.get("schema")  # llama.cpp's interface has one here
        if given is not None and not isinstance(given, dict):
            mistyped("response_format.schema", "an object", given)
        return dict(given or _OBJECT)
    if kind == "json_schema" and isinstance(value, dict):
        given = value.get("json_schema")
        schema = given.get("schema") if isinstance(given, dict) else None
        if not isinstance(schema, dict):
            mistyped("response_format.json_schema.schema", "an object", schema)
        return dict(schema)
    if kind not in (None, "text"):
        mistyped("response_format.type", "text, json_object or json_schema", kind)
    return None


def _call(tool: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A call of a function, as `tool_calls` reads it."""
    function = tool["function"]
    schema = {**_OBJECT, **(function.get("parameters") or {})}
    parameters = _document(_closed(schema), f"call:{number}")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments without unnamed properties, unless it says otherwise.

    JSON schema allows any others as well: small models would go on inventing some. Objects that are
    described by several schemas together stay as they are, as none of these names them all.
    """
    return schema if _JOINED.search(json.dumps(schema)) else dict(_close(schema))


def _close(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for key in _MAPS:
        if isinstance(found.get(key), dict):
            found[key] = {name: _close(value) for name, value in found[key].items()}
    for key in _LISTS:
        if isinstance(found.get(key), list):
            found[key] = [_close(value) for value in found[key]]
    if "items" in found:
        found["items"] = _close(found["items"])
    alone = not found.keys() & {"patternProperties", "$ref", "anyOf", "oneOf"}
    if alone and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


def _document(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A schema inside of another, in which references to its root mean its own."""
    return {"$id": f"urn:treadle:{name}", **schema}


def _any_of(schemas: Sequence[Mapping[str, Any]]) -> str:
    """The text of a schema for any of these."""
    return json.dumps(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})
