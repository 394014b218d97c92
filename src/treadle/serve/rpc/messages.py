"""Classes of messages, made of `inference.proto` when they are first needed.

protoc's generated modules fit one range of versions of the package protobuf; descriptors that are
made while running fit all, and in a pool of their own they do not meet those of a client in the
same process.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

SERVICE = "inference.GRPCInferenceService"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}
_COMMENT = re.compile(r"//[^\n]*")
_BLOCK = re.compile(r"(message|enum|service) (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}")
_CHOICE = re.compile(r"oneof (\w+) \{([^{}]*)\}")
_FIELD = re.compile(r"(repeated )?(?:(\w+)|map<string, (\w+)>) (\w+) = (\d+);")
_CALL = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")
_NUMBER = re.compile(r"(\w+) = (\d+);")


@cache
def pool() -> DescriptorPool:
    """The descriptors of the service and its messages."""
    made = DescriptorPool()
    text = files("treadle.serve.rpc").joinpath("inference.proto").read_text(encoding="utf-8")
    made.Add(read(text))
    return made


@cache
def message(name: str) -> Any:
    """The class of a message."""
    found = pool().FindMessageTypeByName(f"inference.{name}")
    return message_factory.GetMessageClass(found)


def read(text: str) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a file in the part of proto3 that ours is written in."""
    made = descriptor_pb2.FileDescriptorProto(
        name="inference.proto", package="inference", syntax="proto3"
    )
    for kind, name, body in _BLOCK.findall(_COMMENT.sub("", text)):
        if kind == "message":
            _add_message(made, name, body)
        elif kind == "enum":
            enum = made.enum_type.add(name=name)
            for each, number in _NUMBER.findall(body):
                enum.value.add(name=each, number=int(number))
        else:
            service = made.service.add(name=name)
            for each, streams, given, streamed, answer in _CALL.findall(body):
                service.method.add(
                    name=each,
                    input_type=_named(given),
                    output_type=_named(answer),
                    client_streaming=bool(streams),
                    server_streaming=bool(streamed),
                )
    return made


def _named(name: str) -> str:
    return f".inference.{name}"


def _add_message(file: Any, name: str, body: str) -> None:
    made = file.message_type.add(name=name)
    enums = {enum.name for enum in file.enum_type}
    choice = _CHOICE.search(body)
    if choice:
        made.oneof_decl.add(name=choice[1])
    for found in _FIELD.finditer(body):
        repeated, kind, mapped, field, number = found.groups()
        if mapped:
            kind, repeated = f"{name}.{_add_entry(made, field, mapped)}", True
        added = made.field.add(name=field, number=int(number), type=_SCALARS.get(kind))
        added.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        if kind not in _SCALARS:
            added.type = _Field.TYPE_ENUM if kind in enums else _Field.TYPE_MESSAGE
            added.type_name = _named(kind)
        if choice and choice.start() < found.start() < choice.end():
            added.oneof_index = 0


def _add_entry(owner: Any, field: str, kind: str) -> str:
    """The message of a map's entries, from strings to messages."""
    name = "".join(part.title() for part in field.split("_")) + "Entry"
    made = owner.nested_type.add(name=name)
    made.options.map_entry = True
    made.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    made.field.add(
        name="value",
        number=2,
        type=_Field.TYPE_MESSAGE,
        type_name=_named(kind),
        label=_Field.LABEL_OPTIONAL,
    )
    return name


__all__ = ["SERVICE", "message", "pool", "read"]
