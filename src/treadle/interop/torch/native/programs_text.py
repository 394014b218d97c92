"""Programs on the memory of tensors, in LLVM's text form.

`serve` runs an entry (see `layout.py`): it writes addresses of inputs and of new memory into a
table, runs the program, writes what goes into arguments, and makes tensors of the rest.
`treadle_torch_program` is a Python function of a list of tensors for one entry.
"""

from __future__ import annotations

from treadle.backends.objects import ARRAY_DATA, LIST_ITEMS, OBJECT_SIZE, OBJECT_TYPE
from treadle.interop.torch.native.layout import (
    AS_LIST,
    AS_TUPLE,
    ENTRY,
    HEAD_BYTES,
    INPUT,
    INPUT_WORDS,
    MANAGED_CONTEXT,
    MOST_TENSORS,
    NO_RESULT,
    OFFSET,
    OUTPUT,
    OUTPUT_WORDS,
    PROGRAM,
    SHAPE,
    STRIDES,
    TENSOR_BYTES,
)
from treadle.interop.torch.native.words import known, read


def programs_text() -> str:
    """The part of the module that runs programs; needs `tensors_text`."""
    return "\n".join((_INPUTS, _OUTPUTS, _SERVE, _ONE))


# Addresses of inputs into the table; gathered ones are moved together first.
_INPUTS = f"""
define internal void @bind_inputs(ptr %entry, ptr %addresses, ptr %bases) {{
start:
{read("count", "entry", ENTRY["input_count"])}
{read("inputs", "entry", ENTRY["inputs"], "ptr")}
  br label %input
input:
  %i = phi i64 [ 0, %start ], [ %i.next, %bound ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %done
look:
  %input.place = mul i64 %i, {INPUT_WORDS}
  %spec = getelementptr i64, ptr %inputs, i64 %input.place
{read("number", "spec", INPUT["tensor"])}
  %address.at = getelementptr i64, ptr %addresses, i64 %number
  %address = load i64, ptr %address.at, align 8
{read("gathers", "spec", INPUT["gathers"])}
  %is.dense = icmp eq i64 %gathers, 0
  br i1 %is.dense, label %bound, label %gather
gather:
{read("ndim", "spec", INPUT["ndim"])}
{read("sizes", "spec", INPUT["sizes"], "ptr")}
{read("to.steps", "spec", INPUT["to"], "ptr")}
{read("from.steps", "spec", INPUT["strides"], "ptr")}
{read("chunk", "spec", INPUT["chunk"])}
{read("place", "spec", INPUT["place"], "ptr")}
  %from = inttoptr i64 %address to ptr
  call void @move(ptr %place, ptr %from, i64 %ndim, ptr %sizes, ptr %to.steps, ptr %from.steps,
                  i64 %chunk)
  %moved = ptrtoint ptr %place to i64
  br label %bound
bound:
  %value = phi i64 [ %address, %look ], [ %moved, %gather ]
  %base.at = getelementptr i64, ptr %bases, i64 %i
  store i64 %value, ptr %base.at, align 8
  %i.next = add i64 %i, 1
  br label %input
done:
  ret void
}}
"""


# Memory of outputs into the table, and what is written into arguments to where it belongs.
_OUTPUTS = f"""
define internal i1 @bind_outputs(ptr %entry, ptr %table, ptr %blocks) {{
start:
{read("count", "entry", ENTRY["output_count"])}
{read("outputs", "entry", ENTRY["outputs"], "ptr")}
  br label %output
output:
  %i = phi i64 [ 0, %start ], [ %i.next, %bound ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %done
look:
  %output.place = mul i64 %i, {OUTPUT_WORDS}
  %spec = getelementptr i64, ptr %outputs, i64 %output.place
{read("writes", "spec", OUTPUT["writes"])}
  %block.at = getelementptr ptr, ptr %blocks, i64 %i
  store ptr null, ptr %block.at, align 8
  %is.new = icmp eq i64 %writes, 0
  br i1 %is.new, label %make, label %scratch
make:
{read("nbytes", "spec", OUTPUT["nbytes"])}
  %block = call ptr @room(i64 %nbytes)
  store ptr %block, ptr %block.at, align 8
  %is.none = icmp eq ptr %block, null
  br i1 %is.none, label %out, label %bound
scratch:
{read("place", "spec", OUTPUT["place"], "ptr")}
  br label %bound
bound:
  %value = phi ptr [ %block, %make ], [ %place, %scratch ]
  %base.at = getelementptr ptr, ptr %table, i64 %i
  store ptr %value, ptr %base.at, align 8
  %i.next = add i64 %i, 1
  br label %output
done:
  ret i1 true
out:
  call void @drop(ptr %blocks, i64 %i)
  ret i1 false
}}

define internal void @drop(ptr %blocks, i64 %count) {{
start:
{known("free", "PyMem_RawFree")}
  br label %block
block:
  %i = phi i64 [ 0, %start ], [ %i.next, %next ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %done
look:
  %at = getelementptr ptr, ptr %blocks, i64 %i
  %data = load ptr, ptr %at, align 8
  %is.none = icmp eq ptr %data, null
  br i1 %is.none, label %next, label %give
give:
  %raw.at = getelementptr i8, ptr %data, i64 {MANAGED_CONTEXT - HEAD_BYTES}
  %raw = load ptr, ptr %raw.at, align 8
  call void %free(ptr %raw)
  br label %next
next:
  %i.next = add i64 %i, 1
  br label %block
done:
  ret void
}}

define internal void @write_back(ptr %entry, ptr %addresses) {{
start:
{read("count", "entry", ENTRY["output_count"])}
{read("outputs", "entry", ENTRY["outputs"], "ptr")}
  br label %output
output:
  %i = phi i64 [ 0, %start ], [ %i.next, %written ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %done
look:
  %output.place = mul i64 %i, {OUTPUT_WORDS}
  %spec = getelementptr i64, ptr %outputs, i64 %output.place
{read("writes", "spec", OUTPUT["writes"])}
  %is.new = icmp eq i64 %writes, 0
  br i1 %is.new, label %written, label %move
move:
{read("target", "spec", OUTPUT["target"])}
  %address.at = getelementptr ptr, ptr %addresses, i64 %target
  %address = load ptr, ptr %address.at, align 8
{read("axes", "spec", OUTPUT["axes"])}
{read("extents", "spec", OUTPUT["extents"], "ptr")}
{read("to.steps", "spec", OUTPUT["to"], "ptr")}
{read("from.steps", "spec", OUTPUT["from"], "ptr")}
{read("chunk", "spec", OUTPUT["chunk"])}
{read("place", "spec", OUTPUT["place"], "ptr")}
  call void @move(ptr %address, ptr %place, i64 %axes, ptr %extents, ptr %to.steps,
                  ptr %from.steps, i64 %chunk)
  br label %written
written:
  %i.next = add i64 %i, 1
  br label %output
done:
  ret void
}}
"""


# The results of an entry as a Python object; 1 where Python has to do it.
_SERVE = f"""
define internal ptr @serve(ptr %entry, ptr %addresses, ptr %objects) {{
start:
{read("base.count", "entry", ENTRY["base_count"])}
{read("template", "entry", ENTRY["bases"], "ptr")}
{read("inputs", "entry", ENTRY["input_count"])}
{read("outputs", "entry", ENTRY["output_count"])}
  %bases = alloca i64, i64 %base.count, align 16
  %blocks.some = add i64 %outputs, 1
  %blocks = alloca ptr, i64 %blocks.some, align 16
  %array = alloca i8, i64 {ARRAY_DATA + 8}, align 16
  br label %base
base:
  %i = phi i64 [ 0, %start ], [ %i.next, %based ]
  %more = icmp ult i64 %i, %base.count
  br i1 %more, label %based, label %bind
based:
  %word.at = getelementptr i64, ptr %template, i64 %i
  %template.word = load i64, ptr %word.at, align 8
  %base.at = getelementptr i64, ptr %bases, i64 %i
  store i64 %template.word, ptr %base.at, align 8
  %i.next = add i64 %i, 1
  br label %base
bind:
{known("pool", "pool")}
  %is.awake = icmp ne ptr %pool, null
  br i1 %is.awake, label %fill, label %refuse
fill:
  %table = getelementptr i64, ptr %bases, i64 %inputs
  %has.room = call i1 @bind_outputs(ptr %entry, ptr %table, ptr %blocks)
  br i1 %has.room, label %go, label %refuse
go:
  call void @bind_inputs(ptr %entry, ptr %addresses, ptr %bases)
  %array.data = getelementptr i8, ptr %array, i64 {ARRAY_DATA}
  store ptr %bases, ptr %array.data, align 8
{known("run", "run")}
{read("program", "entry", ENTRY["program"], "ptr")}
  %reached = call i64 %run(ptr %pool, ptr %program, ptr %array, i64 0)
  %is.whole = icmp eq i64 %reached, -1
  br i1 %is.whole, label %ran, label %stopped
stopped:
  call void @drop(ptr %blocks, i64 %outputs)
  br label %refuse
refuse:
  ret ptr inttoptr (i64 1 to ptr)
ran:
{read("runs", "entry", ENTRY["runs"], "ptr")}
  %before = load i64, ptr %runs, align 8
  %after = add i64 %before, 1
  store i64 %after, ptr %runs, align 8
  call void @write_back(ptr %entry, ptr %addresses)
  %result = call ptr @results(ptr %entry, ptr %blocks, ptr %objects)
  ret ptr %result
}}

define internal ptr @result(ptr %entry, i64 %number, ptr %blocks, ptr %objects) {{
start:
{read("returns", "entry", ENTRY["returns"], "ptr")}
  %which.at = getelementptr i64, ptr %returns, i64 %number
  %which = load i64, ptr %which.at, align 8
  %is.output = icmp sge i64 %which, 0
  br i1 %is.output, label %output, label %other
output:
  %block.at = getelementptr ptr, ptr %blocks, i64 %which
  %block = load ptr, ptr %block.at, align 8
{read("outputs", "entry", ENTRY["outputs"], "ptr")}
  %output.place = mul i64 %which, {OUTPUT_WORDS}
  %spec = getelementptr i64, ptr %outputs, i64 %output.place
  %made = call ptr @tensor(ptr %block, ptr %spec)
  ret ptr %made
other:
{known("hold", "Py_IncRef")}
  %is.none = icmp eq i64 %which, -1
  br i1 %is.none, label %nothing, label %argument
nothing:
{known("none", "None")}
  call void %hold(ptr %none)
  ret ptr %none
argument:
  %place = sub i64 -2, %which
  %object.at = getelementptr ptr, ptr %objects, i64 %place
  %object = load ptr, ptr %object.at, align 8
  call void %hold(ptr %object)
  ret ptr %object
}}

define internal ptr @results(ptr %entry, ptr %blocks, ptr %objects) {{
start:
{read("form", "entry", ENTRY["form"])}
{read("count", "entry", ENTRY["return_count"])}
  switch i64 %form, label %one [
    i64 {NO_RESULT}, label %none
    i64 {AS_TUPLE}, label %tuple
    i64 {AS_LIST}, label %list
  ]
none:
{known("nothing", "None")}
{known("hold", "Py_IncRef")}
  call void %hold(ptr %nothing)
  ret ptr %nothing
one:
  %single = call ptr @result(ptr %entry, i64 0, ptr %blocks, ptr %objects)
  ret ptr %single
tuple:
{known("new.tuple", "PyTuple_New")}
{known("set.tuple", "PyTuple_SetItem")}
  %a.tuple = call ptr %new.tuple(i64 %count)
  br label %fill
list:
{known("new.list", "PyList_New")}
{known("set.list", "PyList_SetItem")}
  %a.list = call ptr %new.list(i64 %count)
  br label %fill
fill:
  %made = phi ptr [ %a.tuple, %tuple ], [ %a.list, %list ]
  %set = phi ptr [ %set.tuple, %tuple ], [ %set.list, %list ]
  br label %item
item:
  %i = phi i64 [ 0, %fill ], [ %i.next, %put ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %make, label %done
make:
  %value = call ptr @result(ptr %entry, i64 %i, ptr %blocks, ptr %objects)
  %is.made = icmp ne ptr %value, null
  br i1 %is.made, label %put, label %failed
put:
  %ignored = call i32 %set(ptr %made, i64 %i, ptr %value)
  %i.next = add i64 %i, 1
  br label %item
done:
  ret ptr %made
failed:
{known("drop.reference", "Py_DecRef")}
  call void %drop.reference(ptr %made)
  ret ptr null
}}
"""


# A program on a list of tensors; where one is not dense, or none at all, Python does it.
_ONE = f"""
define internal i1 @is_dense(ptr %seen) {{
entry:
  %axes.at = getelementptr i8, ptr %seen, i64 16
  %axes = load i32, ptr %axes.at, align 8
  %ndim = zext i32 %axes to i64
  %shape.at = getelementptr i8, ptr %seen, i64 {SHAPE}
  %shape = load ptr, ptr %shape.at, align 8
  %strides.at = getelementptr i8, ptr %seen, i64 {STRIDES}
  %strides = load ptr, ptr %strides.at, align 8
  br label %axis
axis:
  %k = phi i64 [ %ndim, %entry ], [ %k.next, %next ]
  %wanted = phi i64 [ 1, %entry ], [ %wanted.next, %next ]
  %more = icmp ugt i64 %k, 0
  br i1 %more, label %look, label %dense
look:
  %k.next = sub i64 %k, 1
  %size.at = getelementptr i64, ptr %shape, i64 %k.next
  %size = load i64, ptr %size.at, align 8
  %stride.at = getelementptr i64, ptr %strides, i64 %k.next
  %stride = load i64, ptr %stride.at, align 8
  %is.one = icmp eq i64 %size, 1
  %fits = icmp eq i64 %stride, %wanted
  %fine = or i1 %is.one, %fits
  br i1 %fine, label %next, label %other
next:
  %wanted.next = mul i64 %wanted, %size
  br label %axis
dense:
  ret i1 true
other:
  ret i1 false
}}

define ptr @treadle_torch_program(ptr %self, ptr %list) {{
entry:
  %own.at = getelementptr i8, ptr %self, i64 {ARRAY_DATA}
  %own = load ptr, ptr %own.at, align 8
{read("program", "own", PROGRAM["entry"], "ptr")}
{known("enabled", "enabled", "i64")}
{known("list.type", "list")}
{known("tensor.type", "Tensor")}
{known("parameter.type", "Parameter")}
{known("look", "look")}
  %addresses = alloca i64, i64 {MOST_TENSORS}, align 8
  %seen = alloca i8, i64 {TENSOR_BYTES}, align 8
  %argument = alloca ptr, align 8
  %type.at = getelementptr i8, ptr %list, i64 {OBJECT_TYPE}
  %type = load ptr, ptr %type.at, align 8
  %is.list = icmp eq ptr %type, %list.type
  %is.on = icmp ne i64 %enabled, 0
  %may = and i1 %is.list, %is.on
  br i1 %may, label %begin, label %slow
begin:
  %count.at = getelementptr i8, ptr %list, i64 {OBJECT_SIZE}
  %count = load i64, ptr %count.at, align 8
  %items.at = getelementptr i8, ptr %list, i64 {LIST_ITEMS}
  %items = load ptr, ptr %items.at, align 8
{read("wanted", "program", ENTRY["length"])}
  %all = icmp eq i64 %count, %wanted
  br i1 %all, label %tensor, label %slow
tensor:
  %i = phi i64 [ 0, %begin ], [ %i.next, %bound ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %describe, label %serve
describe:
  %object.at = getelementptr ptr, ptr %items, i64 %i
  %object = load ptr, ptr %object.at, align 8
  %kind.at = getelementptr i8, ptr %object, i64 {OBJECT_TYPE}
  %kind = load ptr, ptr %kind.at, align 8
  %is.plain = icmp eq ptr %kind, %tensor.type
  %is.parameter = icmp eq ptr %kind, %parameter.type
  %is.tensor = or i1 %is.plain, %is.parameter
  br i1 %is.tensor, label %ask, label %slow
ask:
  %failed = call i32 %look(ptr %object, ptr %seen)
  %is.seen = icmp eq i32 %failed, 0
  br i1 %is.seen, label %check, label %clear
clear:
{known("forget", "PyErr_Clear")}
  call void %forget()
  br label %slow
check:
  %data = load i64, ptr %seen, align 8
  %offset.at = getelementptr i8, ptr %seen, i64 {OFFSET}
  %offset = load i64, ptr %offset.at, align 8
  %has.data = icmp ne i64 %data, 0
  %dense = call i1 @is_dense(ptr %seen)
  %fits = and i1 %has.data, %dense
  br i1 %fits, label %whole, label %slow
whole:
{known("name", "is_neg")}
{known("method", "PyObject_VectorcallMethod")}
{known("drop", "Py_DecRef")}
{known("yes", "True")}
  store ptr %object, ptr %argument, align 8
  %negated = call ptr %method(ptr %name, ptr %argument, i64 1, ptr null)
  %is.answered = icmp ne ptr %negated, null
  br i1 %is.answered, label %answered, label %clear
answered:
  call void %drop(ptr %negated)
  %is.negated = icmp eq ptr %negated, %yes
  br i1 %is.negated, label %slow, label %bound
bound:
  %address = add i64 %data, %offset
  %address.to = getelementptr i64, ptr %addresses, i64 %i
  store i64 %address, ptr %address.to, align 8
  %i.next = add i64 %i, 1
  br label %tensor
serve:
  %result = call ptr @serve(ptr %program, ptr %addresses, ptr null)
  %is.refused = icmp eq ptr %result, inttoptr (i64 1 to ptr)
  br i1 %is.refused, label %slow, label %done
done:
  ret ptr %result
slow:
{read("function", "own", PROGRAM["slow"], "ptr")}
{known("call", "PyObject_CallOneArg")}
  %made = call ptr %call(ptr %function, ptr %list)
  ret ptr %made
}}
"""
