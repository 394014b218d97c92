"""Memory and tensors, in LLVM's text form: what the rest of the native part stands on.

Tensors are made as DLPack makes them: the memory is theirs, and `release` gives it back.
`treadle_torch_blank` is a Python function for tensors of a shape.
"""

from __future__ import annotations

from treadle.backends.objects import OBJECT_SIZE, TUPLE_ITEMS
from treadle.interop.torch.native.layout import (
    CONTEXT,
    DATA,
    DEVICE,
    HEAD_BYTES,
    MANAGED_CONTEXT,
    MANAGED_DELETER,
    MANAGED_FLAGS,
    MANAGED_TENSOR,
    MOST_AXES,
    OFFSET,
    OUTPUT,
    OUTPUT_WORDS,
    SHAPE,
    STRIDES,
)
from treadle.interop.torch.native.words import known, put, read


def tensors_text() -> str:
    """The part of the module for memory and tensors."""
    return "\n".join((_CONTEXT, _RELEASE, _MOVE, _MAKE, _BLANK))


_CONTEXT = f"""
@context = internal global [{len(CONTEXT)} x i64] zeroinitializer, align 16

define ptr @treadle_torch_context() {{
  ret ptr @context
}}
"""

_RELEASE = f"""
define internal void @release(ptr %managed) {{
  %raw.at = getelementptr i8, ptr %managed, i64 {MANAGED_CONTEXT}
  %raw = load ptr, ptr %raw.at, align 8
{known("free", "PyMem_RawFree")}
  call void %free(ptr %raw)
  ret void
}}
"""

_CHUNKS = (1, 2, 4, 8, 16, 32)


# Elements of `chunk` bytes from one place to another, each with strides in bytes.
_CASES = "\n".join(f"    i64 {n}, label %by.{n}" for n in _CHUNKS)
_MOVES = "\n".join(
    f"""by.{n}:
  %value.{n} = load i{8 * n}, ptr %source, align 1
  store i{8 * n} %value.{n}, ptr %target, align 1
  br label %moved"""
    for n in _CHUNKS
)
_MOVE = f"""
define internal void @move(ptr %to, ptr %from, i64 %ndim, ptr %extents, ptr %to.steps,
                           ptr %from.steps, i64 %chunk) {{
entry:
  %turns = alloca i64, i64 {MOST_AXES}, align 8
  %last = sub i64 %ndim, 1
  %count.at = getelementptr i64, ptr %extents, i64 %last
  %count = load i64, ptr %count.at, align 8
  %to.step.at = getelementptr i64, ptr %to.steps, i64 %last
  %to.step = load i64, ptr %to.step.at, align 8
  %from.step.at = getelementptr i64, ptr %from.steps, i64 %last
  %from.step = load i64, ptr %from.step.at, align 8
  br label %clear
clear:
  %c = phi i64 [ 0, %entry ], [ %c.next, %cleared ]
  %uncleared = icmp ult i64 %c, %ndim
  br i1 %uncleared, label %cleared, label %row
cleared:
  %turn.clear = getelementptr i64, ptr %turns, i64 %c
  store i64 0, ptr %turn.clear, align 8
  %c.next = add i64 %c, 1
  br label %clear
row:
  %row.to = phi ptr [ %to, %clear ], [ %to.on, %on ]
  %row.from = phi ptr [ %from, %clear ], [ %from.on, %on ]
  br label %element
element:
  %i = phi i64 [ 0, %row ], [ %i.next, %moved ]
  %target = phi ptr [ %row.to, %row ], [ %target.next, %moved ]
  %source = phi ptr [ %row.from, %row ], [ %source.next, %moved ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %copy, label %ended
copy:
  switch i64 %chunk, label %moved [
{_CASES}
  ]
{_MOVES}
moved:
  %i.next = add i64 %i, 1
  %target.next = getelementptr i8, ptr %target, i64 %to.step
  %source.next = getelementptr i8, ptr %source, i64 %from.step
  br label %element
ended:
  br label %axis
axis:
  %k = phi i64 [ %last, %ended ], [ %k.next, %around ]
  %at.to = phi ptr [ %row.to, %ended ], [ %to.around, %around ]
  %at.from = phi ptr [ %row.from, %ended ], [ %from.around, %around ]
  %is.done = icmp eq i64 %k, 0
  br i1 %is.done, label %done, label %outer
outer:
  %k.next = sub i64 %k, 1
  %turn.at = getelementptr i64, ptr %turns, i64 %k.next
  %turn = load i64, ptr %turn.at, align 8
  %turn.next = add i64 %turn, 1
  %extent.at = getelementptr i64, ptr %extents, i64 %k.next
  %extent = load i64, ptr %extent.at, align 8
  %k.to.at = getelementptr i64, ptr %to.steps, i64 %k.next
  %k.to = load i64, ptr %k.to.at, align 8
  %k.from.at = getelementptr i64, ptr %from.steps, i64 %k.next
  %k.from = load i64, ptr %k.from.at, align 8
  %is.inside = icmp ult i64 %turn.next, %extent
  br i1 %is.inside, label %on, label %around
on:
  store i64 %turn.next, ptr %turn.at, align 8
  %to.on = getelementptr i8, ptr %at.to, i64 %k.to
  %from.on = getelementptr i8, ptr %at.from, i64 %k.from
  br label %row
around:
  store i64 0, ptr %turn.at, align 8
  %to.back = mul i64 %turn, %k.to
  %from.back = mul i64 %turn, %k.from
  %to.minus = sub i64 0, %to.back
  %from.minus = sub i64 0, %from.back
  %to.around = getelementptr i8, ptr %at.to, i64 %to.minus
  %from.around = getelementptr i8, ptr %at.from, i64 %from.minus
  br label %axis
done:
  ret void
}}
"""


# Memory for a result behind room for its description; and a tensor on such memory.
_MAKE = f"""
define internal ptr @room(i64 %nbytes) {{
entry:
{known("get", "PyMem_RawMalloc")}
  %more = add i64 %nbytes, {HEAD_BYTES + 64}
  %raw = call ptr %get(i64 %more)
  %is.none = icmp eq ptr %raw, null
  br i1 %is.none, label %out, label %align
align:
  %first = ptrtoint ptr %raw to i64
  %behind = add i64 %first, {HEAD_BYTES + 63}
  %aligned = and i64 %behind, -64
  %data = inttoptr i64 %aligned to ptr
  %head = getelementptr i8, ptr %data, i64 -{HEAD_BYTES}
  %raw.at = getelementptr i8, ptr %head, i64 {MANAGED_CONTEXT}
  store ptr %raw, ptr %raw.at, align 8
  ret ptr %data
out:
  ret ptr null
}}

define internal ptr @tensor(ptr %data, ptr %output) {{
entry:
  %made = alloca ptr, align 8
  store ptr null, ptr %made, align 8
  %head = getelementptr i8, ptr %data, i64 -{HEAD_BYTES}
{known("version", "version", "i64")}
  store i64 %version, ptr %head, align 8
  %deleter.at = getelementptr i8, ptr %head, i64 {MANAGED_DELETER}
  store ptr @release, ptr %deleter.at, align 8
  %flags.at = getelementptr i8, ptr %head, i64 {MANAGED_FLAGS}
  store i64 0, ptr %flags.at, align 8
  %described = getelementptr i8, ptr %head, i64 {MANAGED_TENSOR}
  %data.at = getelementptr i8, ptr %described, i64 {DATA}
  store ptr %data, ptr %data.at, align 8
{read("device", "output", OUTPUT["device"])}
  %device.to = getelementptr i8, ptr %described, i64 {DEVICE}
  store i64 %device, ptr %device.to, align 8
{read("ndim", "output", OUTPUT["ndim"])}
{read("type", "output", OUTPUT["type"])}
  %type.up = shl i64 %type, 32
  %axes = or i64 %type.up, %ndim
  %axes.to = getelementptr i8, ptr %described, i64 16
  store i64 %axes, ptr %axes.to, align 8
{read("sizes", "output", OUTPUT["sizes"], "ptr")}
  %shape.to = getelementptr i8, ptr %described, i64 {SHAPE}
  store ptr %sizes, ptr %shape.to, align 8
{read("strides", "output", OUTPUT["strides"], "ptr")}
  %strides.to = getelementptr i8, ptr %described, i64 {STRIDES}
  store ptr %strides, ptr %strides.to, align 8
  %offset.to = getelementptr i8, ptr %described, i64 {OFFSET}
  store i64 0, ptr %offset.to, align 8
{known("give", "to_object")}
  %failed = call i32 %give(ptr %head, ptr %made)
  %object = load ptr, ptr %made, align 8
  ret ptr %object
}}
"""


# A tensor of the type, element size, device, shape and strides in a tuple; strides may be None.
_BLANK = f"""
define internal void @read_integers(ptr %tuple, i64 %count, ptr %to) {{
entry:
{known("to.integer", "PyLong_AsLongLong")}
  %items = getelementptr i8, ptr %tuple, i64 {TUPLE_ITEMS}
  br label %item
item:
  %i = phi i64 [ 0, %entry ], [ %i.next, %get ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %get, label %done
get:
  %at = getelementptr ptr, ptr %items, i64 %i
  %object = load ptr, ptr %at, align 8
  %value = call i64 %to.integer(ptr %object)
  %to.at = getelementptr i64, ptr %to, i64 %i
  store i64 %value, ptr %to.at, align 8
  %i.next = add i64 %i, 1
  br label %item
done:
  ret void
}}

define ptr @treadle_torch_blank(ptr %self, ptr %tuple) {{
entry:
  %head = alloca i64, i64 3, align 8
  %sizes = alloca i64, i64 {MOST_AXES}, align 8
  %strides = alloca i64, i64 {MOST_AXES}, align 8
  %output = alloca i64, i64 {OUTPUT_WORDS}, align 8
  call void @read_integers(ptr %tuple, i64 3, ptr %head)
  %shape.at = getelementptr i8, ptr %tuple, i64 {TUPLE_ITEMS + 24}
  %shape = load ptr, ptr %shape.at, align 8
  %given.at = getelementptr i8, ptr %tuple, i64 {TUPLE_ITEMS + 32}
  %given = load ptr, ptr %given.at, align 8
  %ndim.at = getelementptr i8, ptr %shape, i64 {OBJECT_SIZE}
  %ndim = load i64, ptr %ndim.at, align 8
  %is.few = icmp ule i64 %ndim, {MOST_AXES}
  br i1 %is.few, label %read, label %none
read:
  call void @read_integers(ptr %shape, i64 %ndim, ptr %sizes)
{known("nothing", "None")}
  %is.dense = icmp eq ptr %given, %nothing
  br i1 %is.dense, label %dense, label %strided
strided:
  call void @read_integers(ptr %given, i64 %ndim, ptr %strides)
  br label %dense
dense:
  br label %axis
axis:
  %k = phi i64 [ %ndim, %dense ], [ %k.next, %extent ]
  %product = phi i64 [ 1, %dense ], [ %product.next, %extent ]
  %reach = phi i64 [ 1, %dense ], [ %reach.next, %extent ]
  %filled = phi i64 [ 1, %dense ], [ %filled.next, %extent ]
  %more = icmp ugt i64 %k, 0
  br i1 %more, label %extent, label %measured
extent:
  %k.next = sub i64 %k, 1
  %size.at = getelementptr i64, ptr %sizes, i64 %k.next
  %size = load i64, ptr %size.at, align 8
  %stride.at = getelementptr i64, ptr %strides, i64 %k.next
  %stride.given = load i64, ptr %stride.at, align 8
  %stride = select i1 %is.dense, i64 %product, i64 %stride.given
  store i64 %stride, ptr %stride.at, align 8
  %is.some = icmp ne i64 %size, 0
  %factor = select i1 %is.some, i64 %size, i64 1
  %product.next = mul i64 %product, %factor
  %filled.next = mul i64 %filled, %size
  %last = sub i64 %size, 1
  %span = mul i64 %last, %stride
  %reach.next = add i64 %reach, %span
  br label %axis
measured:
  %is.empty = icmp eq i64 %filled, 0
  %elements = select i1 %is.empty, i64 0, i64 %reach
{read("type", "head", 0)}
{read("itemsize", "head", 1)}
{read("device", "head", 2)}
  %nbytes = mul i64 %elements, %itemsize
  %data = call ptr @room(i64 %nbytes)
  %is.none = icmp eq ptr %data, null
  br i1 %is.none, label %none, label %give
give:
{put("%type", "output", OUTPUT["type"])}
{put("%device", "output", OUTPUT["device"])}
{put("%ndim", "output", OUTPUT["ndim"])}
{put("%sizes", "output", OUTPUT["sizes"], "ptr")}
{put("%strides", "output", OUTPUT["strides"], "ptr")}
  %made = call ptr @tensor(ptr %data, ptr %output)
  ret ptr %made
none:
{known("fail", "PyErr_NoMemory")}
  %failed = call ptr %fail()
  ret ptr null
}}
"""
