"""Calls of operators that are known, in LLVM's text form.

A kernel of PyTorch in Python is called with a tuple and a dict. `treadle_torch_kernel` writes what
they are into a key (types, shapes and strides of tensors, other arguments as they are), looks it up
among the known calls of its operator, and runs the program that it finds there on the tensors'
memory. What it does not know goes to a function in Python. Nothing here runs code of Python's
between the first look at the arguments and the last use of the key, so the lock that it is called
under keeps others away from the key's memory.
"""

from __future__ import annotations

from treadle.backends.objects import ARRAY_DATA, LIST_ITEMS, OBJECT_SIZE, OBJECT_TYPE, TUPLE_ITEMS
from treadle.interop.torch.native.layout import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    KEY_WORDS,
    LIST,
    MOST_TENSORS,
    NOTHING,
    OPEN,
    OWN,
    SINGLE,
    TENSOR,
    TENSOR_BYTES,
    TEXT,
    TUPLE,
)
from treadle.interop.torch.native.words import known, read


def calls_text() -> str:
    """The part of the module for calls of operators; needs `programs_text`."""
    return "\n".join((_PUSH, _TENSOR, _NOTE, _CALL, _FIND, _KERNEL, _KEY_OF))


# The state of looking at arguments, in words: key, its words so far, addresses and objects of
# tensors, how many there are, room for numbers, and whether real ones are tensors.
_KEY_AT, _WORDS, _ADDRESSES, _OBJECTS, _TENSORS, _REALS, _OPENS = range(7)

_PUSH = f"""
define internal i1 @push(ptr %state, i64 %value) {{
{read("key", "state", _KEY_AT, "ptr")}
{read("count", "state", _WORDS)}
  %fits = icmp ult i64 %count, {KEY_WORDS}
  br i1 %fits, label %put, label %out
put:
  %at = getelementptr i64, ptr %key, i64 %count
  store i64 %value, ptr %at, align 8
  %more = add i64 %count, 1
  store i64 %more, ptr %count.at, align 8
  ret i1 true
out:
  ret i1 false
}}
"""


# A tensor in a key: its type, device, shape and strides; its address and object aside.
_TENSOR = f"""
define internal i1 @note_tensor(ptr %object, ptr %state) {{
entry:
  %seen = alloca i8, i64 {TENSOR_BYTES}, align 8
{known("look", "look")}
  %failed = call i32 %look(ptr %object, ptr %seen)
  %is.seen = icmp eq i32 %failed, 0
  br i1 %is.seen, label %describe, label %clear
clear:
{known("forget", "PyErr_Clear")}
  call void %forget()
  ret i1 false
describe:
  %data = load i64, ptr %seen, align 8
  %device.at = getelementptr i8, ptr %seen, i64 8
  %device = load i64, ptr %device.at, align 8
  %axes.at = getelementptr i8, ptr %seen, i64 16
  %axes = load i64, ptr %axes.at, align 8
  %shape.at = getelementptr i8, ptr %seen, i64 24
  %shape = load ptr, ptr %shape.at, align 8
  %strides.at = getelementptr i8, ptr %seen, i64 32
  %strides = load ptr, ptr %strides.at, align 8
  %offset.at = getelementptr i8, ptr %seen, i64 40
  %offset = load i64, ptr %offset.at, align 8
  %code.up = lshr i64 %axes, 32
  %code = and i64 %code.up, 255
  %is.complex = icmp eq i64 %code, {COMPLEX}
  %is.empty = icmp eq i64 %data, 0
  %refused = or i1 %is.complex, %is.empty
  br i1 %refused, label %out, label %room
room:
  %ndim = and i64 %axes, 4294967295
{read("key", "state", _KEY_AT, "ptr")}
{read("count", "state", _WORDS)}
{read("number", "state", _TENSORS)}
  %twice = shl i64 %ndim, 1
  %words = add i64 %twice, 3
  %end = add i64 %count, %words
  %fits = icmp ule i64 %end, {KEY_WORDS}
  %some = icmp ult i64 %number, {MOST_TENSORS}
  %both = and i1 %fits, %some
  br i1 %both, label %write, label %out
write:
  %here = getelementptr i64, ptr %key, i64 %count
  store i64 {TENSOR}, ptr %here, align 8
  %here.device = getelementptr i64, ptr %here, i64 1
  store i64 %device, ptr %here.device, align 8
  %here.axes = getelementptr i64, ptr %here, i64 2
  store i64 %axes, ptr %here.axes, align 8
  %here.shape = getelementptr i64, ptr %here, i64 3
  br label %axis
axis:
  %i = phi i64 [ 0, %write ], [ %i.next, %extent ]
  %more = icmp ult i64 %i, %ndim
  br i1 %more, label %extent, label %last
extent:
  %size.at = getelementptr i64, ptr %shape, i64 %i
  %size = load i64, ptr %size.at, align 8
  %stride.at = getelementptr i64, ptr %strides, i64 %i
  %stride = load i64, ptr %stride.at, align 8
  %pair = shl i64 %i, 1
  %size.to = getelementptr i64, ptr %here.shape, i64 %pair
  store i64 %size, ptr %size.to, align 8
  %stride.to = getelementptr i64, ptr %size.to, i64 1
  store i64 %stride, ptr %stride.to, align 8
  %i.next = add i64 %i, 1
  br label %axis
last:
  store i64 %end, ptr %count.at, align 8
{read("addresses", "state", _ADDRESSES, "ptr")}
{read("objects", "state", _OBJECTS, "ptr")}
  %address = add i64 %data, %offset
  %address.to = getelementptr i64, ptr %addresses, i64 %number
  store i64 %address, ptr %address.to, align 8
  %object.to = getelementptr ptr, ptr %objects, i64 %number
  store ptr %object, ptr %object.to, align 8
  %number.next = add i64 %number, 1
  store i64 %number.next, ptr %number.at, align 8
  ret i1 true
out:
  ret i1 false
}}
"""


def _type_is(what: str, label: str, then: str) -> str:
    """Go to `then` where the object's type is this one, else on behind `label`."""
    return f"""{known(f"{label}.type", what)}
  %is.{label} = icmp eq ptr %type, %{label}.type
  br i1 %is.{label}, label %{then}, label %not.{label}
not.{label}:"""


# An argument in a key; false where it is none that a call is known by.
_NOTE = f"""
define internal i1 @note(ptr %object, ptr %state) {{
entry:
  %length = alloca i64, align 8
  %type.at = getelementptr i8, ptr %object, i64 {OBJECT_TYPE}
  %type = load ptr, ptr %type.at, align 8
{_type_is("Tensor", "plain", "tensor")}
{_type_is("Parameter", "parameter", "tensor")}
{_type_is("NoneType", "none", "nothing")}
{_type_is("int", "whole", "integer")}
{_type_is("bool", "truth", "boolean")}
{_type_is("float", "real", "floating")}
{_type_is("list", "listed", "list")}
{_type_is("tuple", "tupled", "tuple")}
{_type_is("str", "text", "string")}
{_type_is("dtype", "dtyped", "single")}
{_type_is("layout", "laid", "single")}
{_type_is("memory_format", "formatted", "single")}
  ret i1 false
tensor:
  %noted = call i1 @note_tensor(ptr %object, ptr %state)
  ret i1 %noted
nothing:
  %pushed.nothing = call i1 @push(ptr %state, i64 {NOTHING})
  ret i1 %pushed.nothing
boolean:
{known("yes", "True")}
  %is.true = icmp eq ptr %object, %yes
  %bit = select i1 %is.true, i64 {BOOL + 256}, i64 {BOOL}
  %pushed.bit = call i1 @push(ptr %state, i64 %bit)
  ret i1 %pushed.bit
integer:
{known("to.integer", "PyLong_AsLongLong")}
  %number = call i64 %to.integer(ptr %object)
  %is.odd = icmp eq i64 %number, -1
  br i1 %is.odd, label %ask, label %counted
ask:
{known("error", "PyErr_Occurred")}
  %raised = call ptr %error()
  %is.fine = icmp eq ptr %raised, null
  br i1 %is.fine, label %counted, label %large
large:
{known("forget", "PyErr_Clear")}
  call void %forget()
  ret i1 false
counted:
  %pushed.kind = call i1 @push(ptr %state, i64 {INT})
  %pushed.number = call i1 @push(ptr %state, i64 %number)
  ret i1 %pushed.number
floating:
{known("to.real", "PyFloat_AsDouble")}
  %float = call double %to.real(ptr %object)
{read("opens", "state", _OPENS)}
  %is.open = icmp ne i64 %opens, 0
  br i1 %is.open, label %open, label %closed
open:
{read("tensors", "state", _TENSORS)}
  %has.room = icmp ult i64 %tensors, {MOST_TENSORS}
  br i1 %has.room, label %keep, label %out
keep:
{read("reals", "state", _REALS, "ptr")}
{read("addresses", "state", _ADDRESSES, "ptr")}
{read("objects", "state", _OBJECTS, "ptr")}
  %real.at = getelementptr double, ptr %reals, i64 %tensors
  store double %float, ptr %real.at, align 8
  %address.at = getelementptr ptr, ptr %addresses, i64 %tensors
  store ptr %real.at, ptr %address.at, align 8
  %object.at = getelementptr ptr, ptr %objects, i64 %tensors
  store ptr %object, ptr %object.at, align 8
  %tensors.next = add i64 %tensors, 1
  store i64 %tensors.next, ptr %tensors.at, align 8
  %pushed.open = call i1 @push(ptr %state, i64 {OPEN})
  ret i1 %pushed.open
closed:
  %bits = bitcast double %float to i64
  %pushed.float = call i1 @push(ptr %state, i64 {FLOAT})
  %pushed.bits = call i1 @push(ptr %state, i64 %bits)
  ret i1 %pushed.bits
single:
  %as.number = ptrtoint ptr %object to i64
  %pushed.single = call i1 @push(ptr %state, i64 {SINGLE})
  %pushed.which = call i1 @push(ptr %state, i64 %as.number)
  ret i1 %pushed.which
list:
  %list.items.at = getelementptr i8, ptr %object, i64 {LIST_ITEMS}
  %list.items = load ptr, ptr %list.items.at, align 8
  br label %items
tuple:
  %tuple.items = getelementptr i8, ptr %object, i64 {TUPLE_ITEMS}
  br label %items
items:
  %items.first = phi ptr [ %list.items, %list ], [ %tuple.items, %tuple ]
  %items.kind = phi i64 [ {LIST}, %list ], [ {TUPLE}, %tuple ]
  %size.at = getelementptr i8, ptr %object, i64 {OBJECT_SIZE}
  %size = load i64, ptr %size.at, align 8
  %size.up = shl i64 %size, 8
  %head = or i64 %size.up, %items.kind
  %pushed.head = call i1 @push(ptr %state, i64 %head)
  br label %item
item:
  %i = phi i64 [ 0, %items ], [ %i.next, %next ]
  %more = icmp ult i64 %i, %size
  br i1 %more, label %look, label %done
look:
  %item.at = getelementptr ptr, ptr %items.first, i64 %i
  %item.object = load ptr, ptr %item.at, align 8
  %was.noted = call i1 @note(ptr %item.object, ptr %state)
  br i1 %was.noted, label %next, label %out
next:
  %i.next = add i64 %i, 1
  br label %item
done:
  ret i1 %pushed.head
string:
{known("to.bytes", "PyUnicode_AsUTF8AndSize")}
  %bytes = call ptr %to.bytes(ptr %object, ptr %length)
  %has.bytes = icmp ne ptr %bytes, null
  br i1 %has.bytes, label %spell, label %odd
odd:
{known("forget.text", "PyErr_Clear")}
  call void %forget.text()
  ret i1 false
spell:
  %count = load i64, ptr %length, align 8
  %count.up = shl i64 %count, 8
  %text.head = or i64 %count.up, {TEXT}
  %pushed.text = call i1 @push(ptr %state, i64 %text.head)
  br label %letters
letters:
  %at = phi i64 [ 0, %spell ], [ %at.next, %pushed ]
  %some = icmp ult i64 %at, %count
  br i1 %some, label %word, label %spelled
word:
  %rest = sub i64 %count, %at
  %short = icmp ult i64 %rest, 8
  %take = select i1 %short, i64 %rest, i64 8
  br label %letter
letter:
  %j = phi i64 [ 0, %word ], [ %j.next, %letter ]
  %made = phi i64 [ 0, %word ], [ %made.next, %letter ]
  %place = add i64 %at, %j
  %byte.at = getelementptr i8, ptr %bytes, i64 %place
  %byte = load i8, ptr %byte.at, align 1
  %wide = zext i8 %byte to i64
  %moved = shl i64 %made, 8
  %made.next = or i64 %moved, %wide
  %j.next = add i64 %j, 1
  %again = icmp ult i64 %j.next, %take
  br i1 %again, label %letter, label %push
push:
  %pushed.word = call i1 @push(ptr %state, i64 %made.next)
  br i1 %pushed.word, label %pushed, label %out
pushed:
  %at.next = add i64 %at, %take
  br label %letters
spelled:
  ret i1 %pushed.text
out:
  ret i1 false
}}
"""


# The key of a call: positional arguments, then names and values.
_CALL = f"""
define internal i1 @note_call(ptr %args, ptr %kwargs, ptr %state) {{
entry:
  %place = alloca i64, align 8
  %name = alloca ptr, align 8
  %value = alloca ptr, align 8
  store i64 0, ptr %place, align 8
  %noted = call i1 @note(ptr %args, ptr %state)
  br i1 %noted, label %named, label %out
named:
  %has.names = icmp ne ptr %kwargs, null
  br i1 %has.names, label %next, label %done
next:
{known("step", "PyDict_Next")}
  %more = call i32 %step(ptr %kwargs, ptr %place, ptr %name, ptr %value)
  %some = icmp ne i32 %more, 0
  br i1 %some, label %pair, label %done
pair:
  %name.object = load ptr, ptr %name, align 8
  %value.object = load ptr, ptr %value, align 8
  %noted.name = call i1 @note(ptr %name.object, ptr %state)
  br i1 %noted.name, label %given, label %out
given:
  %noted.value = call i1 @note(ptr %value.object, ptr %state)
  br i1 %noted.value, label %next, label %out
done:
  ret i1 true
out:
  ret i1 false
}}
"""


_FIND = f"""
define internal ptr @find(ptr %own, ptr %key, i64 %count) {{
entry:
  br label %mix
mix:
  %i = phi i64 [ 0, %entry ], [ %i.next, %mixed ]
  %hash = phi i64 [ 1469598103934665603, %entry ], [ %hash.next, %mixed ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %mixed, label %choose
mixed:
  %word.at = getelementptr i64, ptr %key, i64 %i
  %word = load i64, ptr %word.at, align 8
  %both = xor i64 %hash, %word
  %product = mul i64 %both, 1099511628211
  %high = lshr i64 %product, 29
  %hash.next = xor i64 %product, %high
  %i.next = add i64 %i, 1
  br label %mix
choose:
{read("buckets", "own", OWN["buckets"], "ptr")}
{read("mask", "own", OWN["mask"])}
  %bucket = and i64 %hash, %mask
  %first.at = getelementptr ptr, ptr %buckets, i64 %bucket
  %first = load ptr, ptr %first.at, align 8
  br label %entries
entries:
  %found = phi ptr [ %first, %choose ], [ %next, %other ]
  %is.end = icmp eq ptr %found, null
  br i1 %is.end, label %out, label %look
look:
{read("next", "found", 0, "ptr")}
{read("its.hash", "found", 1)}
{read("its.count", "found", 2)}
{read("its.key", "found", 3, "ptr")}
  %same.hash = icmp eq i64 %its.hash, %hash
  %same.count = icmp eq i64 %its.count, %count
  %alike = and i1 %same.hash, %same.count
  br i1 %alike, label %compare, label %other
compare:
  %j = phi i64 [ 0, %look ], [ %j.next, %equal ]
  %left = icmp ult i64 %j, %count
  br i1 %left, label %pair, label %out
pair:
  %mine.at = getelementptr i64, ptr %key, i64 %j
  %mine = load i64, ptr %mine.at, align 8
  %its.at = getelementptr i64, ptr %its.key, i64 %j
  %its = load i64, ptr %its.at, align 8
  %same = icmp eq i64 %mine, %its
  br i1 %same, label %equal, label %other
equal:
  %j.next = add i64 %j, 1
  br label %compare
other:
  br label %entries
out:
  ret ptr %found
}}
"""


def _state(key: str, opens: str) -> str:
    """A state with nothing in it yet."""
    return f"""  %state = alloca i64, i64 7, align 8
  %reals = alloca double, i64 {MOST_TENSORS}, align 8
  %addresses = alloca i64, i64 {MOST_TENSORS}, align 8
  %objects = alloca ptr, i64 {MOST_TENSORS}, align 8
  store ptr %{key}, ptr %state, align 8
  %count.at = getelementptr i64, ptr %state, i64 {_WORDS}
  store i64 0, ptr %count.at, align 8
  %addresses.to = getelementptr i64, ptr %state, i64 {_ADDRESSES}
  store ptr %addresses, ptr %addresses.to, align 8
  %objects.to = getelementptr i64, ptr %state, i64 {_OBJECTS}
  store ptr %objects, ptr %objects.to, align 8
  %tensors.to = getelementptr i64, ptr %state, i64 {_TENSORS}
  store i64 0, ptr %tensors.to, align 8
  %reals.to = getelementptr i64, ptr %state, i64 {_REALS}
  store ptr %reals, ptr %reals.to, align 8
  %opens.to = getelementptr i64, ptr %state, i64 {_OPENS}
  store i64 %{opens}, ptr %opens.to, align 8"""


_KERNEL = f"""
define ptr @treadle_torch_kernel(ptr %self, ptr %args, ptr %kwargs) {{
entry:
  %own.at = getelementptr i8, ptr %self, i64 {ARRAY_DATA}
  %own = load ptr, ptr %own.at, align 8
{known("enabled", "enabled", "i64")}
  %is.on = icmp ne i64 %enabled, 0
{known("key", "keys")}
{read("opens", "own", OWN["opens"])}
{_state("key", "opens")}
  br i1 %is.on, label %note, label %slow
note:
  %noted = call i1 @note_call(ptr %args, ptr %kwargs, ptr %state)
  br i1 %noted, label %find, label %slow
find:
  %count = load i64, ptr %count.at, align 8
  %entry.found = call ptr @find(ptr %own, ptr %key, i64 %count)
  %is.known = icmp ne ptr %entry.found, null
  br i1 %is.known, label %serve, label %slow
serve:
  %result = call ptr @serve(ptr %entry.found, ptr %addresses, ptr %objects)
  %is.refused = icmp eq ptr %result, inttoptr (i64 1 to ptr)
  br i1 %is.refused, label %slow, label %done
done:
  ret ptr %result
slow:
{read("function", "own", OWN["slow"], "ptr")}
{known("call", "PyObject_Call")}
  %made = call ptr %call(ptr %function, ptr %args, ptr %kwargs)
  ret ptr %made
}}
"""


# The key of a call as bytes, for who adds one: of a tuple (arguments, names, whether real numbers
# are no part of it); None where it has none.
_KEY_OF = f"""
define ptr @treadle_torch_key(ptr %self, ptr %pair) {{
entry:
  %args.at = getelementptr i8, ptr %pair, i64 {TUPLE_ITEMS}
  %args = load ptr, ptr %args.at, align 8
  %kwargs.at = getelementptr i8, ptr %pair, i64 {TUPLE_ITEMS + 8}
  %kwargs = load ptr, ptr %kwargs.at, align 8
  %opens.at = getelementptr i8, ptr %pair, i64 {TUPLE_ITEMS + 16}
  %opens.object = load ptr, ptr %opens.at, align 8
{known("yes", "True")}
  %is.open = icmp eq ptr %opens.object, %yes
  %opens = zext i1 %is.open to i64
{known("key", "keys")}
{_state("key", "opens")}
  %noted = call i1 @note_call(ptr %args, ptr %kwargs, ptr %state)
  br i1 %noted, label %give, label %refuse
give:
  %count = load i64, ptr %count.at, align 8
  %bytes = shl i64 %count, 3
{known("make", "PyBytes_FromStringAndSize")}
  %made = call ptr %make(ptr %key, i64 %bytes)
  ret ptr %made
refuse:
{known("none", "None")}
{known("hold", "Py_IncRef")}
  call void %hold(ptr %none)
  ret ptr %none
}}
"""
