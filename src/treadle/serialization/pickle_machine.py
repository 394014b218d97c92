"""Reads pickles without calling what they name: the opcodes, over a table that is closed.

Python's unpickler imports what a file names, calls it with arguments from the file and sets
attributes of what comes back; with an allow-list in front, each allowed class and function must
withstand that. Here a name stands for data or for a `Callee` written for this, nothing is imported,
no attribute is looked up or set, and the only objects that a file can change are its own.

Opcodes: https://github.com/python/cpython/blob/main/Lib/pickletools.py
"""

from __future__ import annotations

import codecs
import math
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.files.source import SizedStream
from treadle.base.files.strict_json import shorten
from treadle.serialization.encode import is_key

OPCODE, CONTAINER, CALL = 32, 128, 512
"""Bytes that are charged for one; about what Python takes."""
AGAIN = 96
"""The same for one that has an object once more: of those a file can have many for nothing."""

_ALL_OBJECTS = 128 << 20
_GROWTH, _SLACK = 4, 1 << 20
_PER_BYTE, _ALL_GRANTED = 80, 256 << 20
"""Bytes of objects that a file may have beyond, for what is known to have many: by byte of the
file, and in all."""
_PYTHON_ERRORS = (TypeError, ValueError, KeyError, IndexError, OverflowError, struct.error)


class Malformed(ValueError):
    """The file breaks a rule; the message names it, the caller says of which file."""


class Meter:
    """Bounds the memory, and with it the time, that a file can make a reader take.

    Args:
        size: bytes of the file.
    """

    def __init__(self, size: int) -> None:
        self._data = _GROWTH * size + _SLACK
        self._objects = _ALL_OBJECTS
        self._granted = min(_PER_BYTE * size, _ALL_GRANTED)

    def copy(self, count: int) -> None:
        """Account for bytes of data: text becomes bytes, bytes an array, an array a tensor."""
        self._data -= count
        if self._data < 0:
            raise Malformed("its arrays are larger than its data: bytes are used again and again")

    def grant(self, count: int) -> None:
        """Allow for more bytes of Python objects, as far as a file of this size can have them."""
        more = min(count, self._granted)
        self._granted -= more
        self._objects += more

    def objects(self, count: int) -> None:
        """Account for the bytes of Python objects."""
        self._objects -= count
        if self._objects < 0:
            raise Malformed("it makes more small objects than any checkpoint has")


@dataclass(frozen=True, eq=False, slots=True)
class Callee:
    """Stand-in of a class or function: all that a pickle can do with it is `make`."""

    name: str
    make: Callable[[tuple[Any, ...]], object]


@dataclass(eq=False, repr=False, slots=True)
class Record:
    """An object as it was written, which somebody who knows its class makes into one of theirs.

    Attributes:
        home: the module of its class.
        label: the name of its class.
        arguments: what the class was called with.
        state: what it was given; None before that.
    """

    home: str
    label: str
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True, slots=True)
class AllowedGlobals:
    """Classes and functions that a file may name beyond containers and plain values.

    Attributes:
        find: what stands for a module and a name; raises `CheckpointError` for all others.
        build: gives an object its state in place; raises `Malformed` for objects without.
        stored: the object that is kept outside of the pickle under an id; None if nothing is.
    """

    find: Callable[[str, str], object]
    build: Callable[[Any, Any], None]
    stored: Callable[[Any], object] | None = None


class Interrupted(Exception):
    """Carries what a function of the user raised past the handlers for malformed files."""


def run(source: SizedStream, table: AllowedGlobals, meter: Meter) -> object:
    """The object that a pickle describes.

    Raises:
        CheckpointError: the file is damaged, or asks for what the table lacks.
        TreadleError: a device in the file is missing.
    """
    machine = Machine(source, table, meter)
    try:
        return machine.run()
    except Malformed as error:
        raise source.error(f"the pickle is malformed before byte {machine.at}: {error}") from None


class Machine:
    """One pickle being read.

    Attributes:
        at: the position in the file.
    """

    def __init__(self, source: SizedStream, table: AllowedGlobals, meter: Meter) -> None:
        self.at = 0
        self._source = source
        self._table = table
        self._meter = meter
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks below the open marks
        self._memo: dict[int, Any] = {}

    def run(self) -> object:
        """Run to the end of the file."""
        stream, charge = self._source.stream, self._meter.objects
        stream.seek(0)
        while (code := stream.read(1)) != pickle.STOP:
            self.at += len(code)
            charge(OPCODE)
            action = _ACTIONS.get(code)
            if action is None:
                raise Malformed(_REFUSED.get(code, f"opcode {code!r} does not exist"))
            try:
                action(self)
            except Malformed:
                raise
            except IndexError:
                raise Malformed("its stack holds too little for an opcode") from None
        self.at += 1
        if self.left:
            raise Malformed(f"{self.left} bytes follow its end")
        if self._below or len(self._stack) != 1:
            raise Malformed("it ends with open marks, or another number of objects than 1")
        return self._stack.pop()

    # -- input -----------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """The next bytes; no memory is taken before it is known that they are there."""
        if count > self.left:
            raise Malformed("it is truncated")
        data = self._source.stream.read(count)
        self.at += len(data)
        if len(data) != count:
            raise Malformed("it became shorter while it was read")
        return data

    def number(self, form: struct.Struct) -> Any:
        """The next number."""
        return form.unpack(self.take(form.size))[0]

    def line(self) -> bytes:
        """The next line, without its end."""
        data = self._source.stream.readline()
        self.at += len(data)
        if not data.endswith(b"\n"):
            raise Malformed("it is truncated")
        return data[:-1]

    @property
    def left(self) -> int:
        """Number of bytes left to read."""
        return self._source.size - self.at

    # -- stack -----------------------------------------------------------------------------

    def push(self, value: object) -> None:
        """Put an object on the stack."""
        self._stack.append(value)

    def contain(self, value: object) -> None:
        """Put a new container on the stack."""
        self._meter.objects(CONTAINER)
        self._stack.append(value)

    def pop(self) -> Any:
        """Take an object off the stack."""
        return self._stack.pop()

    def mark(self) -> None:
        """Begin a group of objects."""
        self._meter.objects(CONTAINER)
        self._below.append(self._stack)
        self._stack = []

    def group(self) -> list[Any]:
        """End a group: the objects since the last mark."""
        if not self._below:
            raise Malformed("an opcode needs a mark that is not there")
        items, self._stack = self._stack, self._below.pop()
        return items

    def drop(self) -> None:
        """Take off an object, or the mark if there is none above it."""
        if self._stack:
            self._stack.pop()
        else:
            self.group()

    def keep(self, index: int) -> None:
        """Remember the last object under a number."""
        if index < 0:
            raise Malformed("a negative number in the memo")
        self._memo[index] = self._stack[-1]

    def keep_next(self) -> None:
        """Remember the last object under the next number."""
        self._memo[len(self._memo)] = self._stack[-1]

    def again(self) -> None:
        """Push the last object once more."""
        self._meter.objects(AGAIN)
        self._stack.append(self._stack[-1])

    def recall(self, index: int) -> None:
        """Push what was remembered."""
        self._meter.objects(AGAIN)
        if index not in self._memo:
            raise Malformed(f"number {index} is not in the memo")
        self._stack.append(self._memo[index])

    # -- containers ------------------------------------------------------------------------

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top."""
        target = self._stack[-1]
        if type(target) is not list:
            raise Malformed(f"items are appended to a {kind(target)}")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        """Put keys and values, alternating, into the dict on top."""
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise Malformed(f"items are set in a {kind(target)}")
        if len(items) % 2:
            raise Malformed("a key has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[checked_key(key)] = value

    def add(self, items: list[Any]) -> None:
        """Put elements into the set on top."""
        target = self._stack[-1]
        if type(target) is not set:
            raise Malformed(f"elements are added to a {kind(target)}")
        target.update(map(checked_key, items))

    # -- names -----------------------------------------------------------------------------

    def find(self, module: object, name: object) -> object:
        """Return the stand-in of a name."""
        if not (type(module) is str and type(name) is str):
            raise Malformed("a name is not text")
        return self._table.find(module, name)

    def call(self, callee: object, arguments: object) -> None:
        """Push what a callee makes of arguments."""
        if not isinstance(callee, Callee):
            raise Malformed(f"a {kind(callee)} is called")
        if type(arguments) is not tuple:
            raise Malformed(f"the arguments of {callee.name} are a {kind(arguments)}")
        self._meter.objects(CALL)
        self.push(callee.make(arguments))

    def stored(self, number: object) -> None:
        """Push an object that is kept outside of the pickle."""
        if self._table.stored is None:
            raise Malformed("it refers to objects that are kept elsewhere")
        self.push(self._table.stored(number))

    def build(self) -> None:
        """Give the object below the top the state on top."""
        state = self._stack.pop()
        self._table.build(self._stack[-1], state)


def kind(value: object) -> str:
    """Return the kind of an object, for messages."""
    return value.name if isinstance(value, Callee) else type(value).__name__


def checked_key(key: Any) -> Any:
    """The key itself; hashing what is not a key could take forever or run into nested tuples."""
    if is_key(key) or type(key) is bytes or isinstance(key, (np.generic, Record)):
        return key
    raise Malformed(f"a {kind(key)} is used as a key or an element of a set")


_Action = Callable[[Machine], None]
_U8, _U16, _U32, _U64 = (struct.Struct(f) for f in ("<B", "<H", "<I", "<Q"))
_I32, _F64 = struct.Struct("<i"), struct.Struct(">d")


def _pushes(value: object) -> _Action:
    return lambda m: m.push(value)


def _contains(make: Callable[[], object]) -> _Action:
    return lambda m: m.contain(make())


def _reads_number(form: struct.Struct) -> _Action:
    return lambda m: m.push(m.number(form))


def _reads_bytes(length: struct.Struct, convert: Callable[[bytes], object]) -> _Action:
    def action(m: Machine) -> None:
        m.push(_converted(convert, m.take(m.number(length))))

    return action


def _reads_line(convert: Callable[[bytes], object]) -> _Action:
    return lambda m: m.push(_converted(convert, m.line()))


def _converted(convert: Callable[[bytes], object], data: bytes) -> object:
    try:
        return convert(data)
    except _PYTHON_ERRORS:
        raise Malformed(f"{shorten(data[:40])} is not what its opcode says") from None


def _groups(convert: Callable[[list[Any]], object]) -> _Action:
    return lambda m: m.contain(convert(m.group()))


def _takes_tuple(count: int) -> _Action:
    def action(m: Machine) -> None:
        items = [m.pop() for _ in range(count)]
        m.contain(tuple(reversed(items)))

    return action


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _escaped(data: bytes) -> str:
    return codecs.raw_unicode_escape_decode(data)[0]


def _quoted(data: bytes) -> str:
    body = data.strip()
    if len(body) < 2 or body[:1] != body[-1:] or body[:1] not in b"'\"":
        raise ValueError("no quotes")
    return codecs.escape_decode(body[1:-1])[0].decode("ascii")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


_BOOLEANS = {b"00": False, b"01": True}


def _decimal(data: bytes) -> object:
    # Protocol 0 has no booleans but these two spellings of an integer.
    return _BOOLEANS[data] if data in _BOOLEANS else int(data)


def _spelled(data: bytes) -> float:
    value = float(data)
    # Nothing spells a number like 1e400, which has no float; infinity has a name.
    if math.isinf(value) and b"inf" not in data.lower():
        raise ValueError("out of range")
    return value


def _long(data: bytes) -> int:
    return int(data.removesuffix(b"L"))


def _drop_group(m: Machine) -> None:
    m.group()


def _dict(m: Machine) -> None:
    items = m.group()
    m.contain({})
    m.update(items)


def _set_item(m: Machine) -> None:
    value, key = m.pop(), m.pop()
    m.update([key, value])


def _append(m: Machine) -> None:
    value = m.pop()
    m.extend([value])


def _frozen_set(m: Machine) -> None:
    m.contain(frozenset(map(checked_key, m.group())))


def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    m.push(m.find(module, name))


def _line_name(m: Machine) -> str:
    return str(_converted(_text, m.line()))


def _global(m: Machine) -> None:
    module, name = _line_name(m), _line_name(m)
    m.push(m.find(module, name))


def _reduce(m: Machine) -> None:
    arguments, callee = m.pop(), m.pop()
    m.call(callee, arguments)


def _new_with_keywords(m: Machine) -> None:
    keywords, arguments, callee = m.pop(), m.pop(), m.pop()
    if type(keywords) is not dict or keywords:
        raise Malformed(f"{kind(callee)} gets arguments by keyword")
    m.call(callee, arguments)


def _instance(m: Machine) -> None:
    callee = m.find(_line_name(m), _line_name(m))
    m.call(callee, tuple(m.group()))


def _object(m: Machine) -> None:
    callee, *arguments = m.group() or [None]
    m.call(callee, tuple(arguments))


def _protocol(m: Machine) -> None:
    found = m.number(_U8)
    if found > pickle.HIGHEST_PROTOCOL:
        raise Malformed(f"protocol {found} is unknown, the last one is {pickle.HIGHEST_PROTOCOL}")


def _frame(m: Machine) -> None:
    # A hint for readers that buffer; that the bytes are there is checked all the same.
    if m.number(_U64) > m.left:
        raise Malformed("it is truncated")


_ACTIONS: dict[bytes, _Action] = {
    code: action
    for code, action in (
        (pickle.PROTO, _protocol),
        (pickle.FRAME, _frame),
        (pickle.NONE, _pushes(None)),
        (pickle.NEWTRUE, _pushes(True)),
        (pickle.NEWFALSE, _pushes(False)),
        (pickle.EMPTY_TUPLE, _pushes(())),
        (pickle.EMPTY_LIST, _contains(list)),
        (pickle.EMPTY_DICT, _contains(dict)),
        (pickle.EMPTY_SET, _contains(set)),
        (pickle.BININT, _reads_number(_I32)),
        (pickle.BININT1, _reads_number(_U8)),
        (pickle.BININT2, _reads_number(_U16)),
        (pickle.BINFLOAT, _reads_number(_F64)),
        (pickle.LONG1, _reads_bytes(_U8, _integer)),
        (pickle.LONG4, _reads_bytes(_U32, _integer)),
        (pickle.BINBYTES, _reads_bytes(_U32, bytes)),
        (pickle.SHORT_BINBYTES, _reads_bytes(_U8, bytes)),
        (pickle.BINBYTES8, _reads_bytes(_U64, bytes)),
        (pickle.BYTEARRAY8, _reads_bytes(_U64, bytearray)),
        (pickle.BINUNICODE, _reads_bytes(_U32, _text)),
        (pickle.SHORT_BINUNICODE, _reads_bytes(_U8, _text)),
        (pickle.BINUNICODE8, _reads_bytes(_U64, _text)),
        (pickle.BINSTRING, _reads_bytes(_U32, lambda data: data.decode("ascii"))),
        (pickle.SHORT_BINSTRING, _reads_bytes(_U8, lambda data: data.decode("ascii"))),
        (pickle.INT, _reads_line(_decimal)),
        (pickle.LONG, _reads_line(_long)),
        (pickle.FLOAT, _reads_line(_spelled)),
        (pickle.STRING, _reads_line(_quoted)),
        (pickle.UNICODE, _reads_line(_escaped)),
        (pickle.MARK, Machine.mark),
        (pickle.POP, Machine.drop),
        (pickle.POP_MARK, _drop_group),
        (pickle.DUP, Machine.again),
        (pickle.LIST, _groups(list)),
        (pickle.TUPLE, _groups(tuple)),
        (pickle.DICT, _dict),
        (pickle.FROZENSET, _frozen_set),
        (pickle.TUPLE1, _takes_tuple(1)),
        (pickle.TUPLE2, _takes_tuple(2)),
        (pickle.TUPLE3, _takes_tuple(3)),
        (pickle.APPEND, _append),
        (pickle.APPENDS, lambda m: m.extend(m.group())),
        (pickle.SETITEM, _set_item),
        (pickle.SETITEMS, lambda m: m.update(m.group())),
        (pickle.ADDITEMS, lambda m: m.add(m.group())),
        (pickle.PUT, lambda m: m.keep(_converted(int, m.line()))),
        (pickle.BINPUT, lambda m: m.keep(m.number(_U8))),
        (pickle.LONG_BINPUT, lambda m: m.keep(m.number(_U32))),
        (pickle.MEMOIZE, Machine.keep_next),
        (pickle.GET, lambda m: m.recall(_converted(int, m.line()))),
        (pickle.BINGET, lambda m: m.recall(m.number(_U8))),
        (pickle.LONG_BINGET, lambda m: m.recall(m.number(_U32))),
        (pickle.GLOBAL, _global),
        (pickle.STACK_GLOBAL, _stack_global),
        (pickle.REDUCE, _reduce),
        (pickle.NEWOBJ, _reduce),
        (pickle.NEWOBJ_EX, _new_with_keywords),
        (pickle.INST, _instance),
        (pickle.OBJ, _object),
        (pickle.BUILD, Machine.build),
        (pickle.PERSID, lambda m: m.stored(m.line())),
        (pickle.BINPERSID, lambda m: m.stored(m.pop())),
    )
}
_REFUSED: dict[bytes, str] = {
    b"": "it is truncated",
} | {
    code: problem
    for codes, problem in (
        ((pickle.EXT1, pickle.EXT2, pickle.EXT4), "it names classes by registered numbers"),
        ((pickle.NEXT_BUFFER, pickle.READONLY_BUFFER), "its data is kept elsewhere"),
    )
    for code in codes
}
