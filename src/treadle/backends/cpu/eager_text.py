"""The native part of eager calls, in LLVM's text form.

`treadle_launch` runs a program whose bases are the data of a tuple's NumPy arrays.
`treadle_switch` is a Python function (METH_FASTCALL) that hands its operands to one of two others
by their size; one written in Python would add a tenth to every small operation.
"""

from __future__ import annotations

from treadle.backends.cpu.layout import NO_POOL, NOT_DENSE
from treadle.backends.objects import ARRAY_DATA, ARRAY_FLAGS, ARRAY_NDIM, ARRAY_SHAPE, OBJECT_TYPE


def eager_text() -> str:
    """The part of the module for eager calls; needs `executor_text`."""
    return _LAUNCH + _SWITCH


_LAUNCH = f"""
define i64 @treadle_launch(ptr %pool, ptr %program, ptr %arrays, i64 %count) {{
entry:
  %awake = icmp ne ptr %pool, null
  br i1 %awake, label %prepare, label %asleep
asleep:
  ret i64 {NO_POOL}
prepare:
  %most = load i64, ptr %program, align 8
  %scratch = alloca i64, i64 %most, align 16
  %bases = alloca i64, i64 %count, align 16
  %objects = call ptr @items(ptr %arrays)
  br label %array
array:
  %i = phi i64 [ 0, %prepare ], [ %i.next, %dense ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %check, label %go
check:
  %object.at = getelementptr ptr, ptr %objects, i64 %i
  %object = load ptr, ptr %object.at, align 8
  %flags.at = getelementptr i8, ptr %object, i64 {ARRAY_FLAGS}
  %flags = load i32, ptr %flags.at, align 4
  %bit = and i32 %flags, 1
  %is.dense = icmp ne i32 %bit, 0
  br i1 %is.dense, label %dense, label %sparse
sparse:
  ret i64 {NOT_DENSE}
dense:
  %data.at = getelementptr i8, ptr %object, i64 {ARRAY_DATA}
  %data = load i64, ptr %data.at, align 8
  %base.at = getelementptr i64, ptr %bases, i64 %i
  store i64 %data, ptr %base.at, align 8
  %i.next = add i64 %i, 1
  br label %array
go:
  %first = call i64 @word_of(ptr %program, i64 0)
  %reached = call i64 @walk(ptr %pool, ptr %program, ptr %bases, i64 %first,
                            ptr %scratch)
  ret i64 %reached
}}

"""

# The context, found in an array: [limit, function for small, function for large operands, NumPy's
# array type, PyObject_Vectorcall]; the last four are addresses. What is no array counts as small.
_SWITCH = f"""
define ptr @treadle_switch(ptr %self, ptr %args, i64 %count) {{
entry:
  %context.at = getelementptr i8, ptr %self, i64 {ARRAY_DATA}
  %context = load ptr, ptr %context.at, align 8
  %limit = load i64, ptr %context, align 8
  %array.at = getelementptr i64, ptr %context, i64 3
  %array.type = load ptr, ptr %array.at, align 8
  %call.at = getelementptr i64, ptr %context, i64 4
  %call = load ptr, ptr %call.at, align 8
  br label %operand
operand:
  %i = phi i64 [ 0, %entry ], [ %i.next, %measured ]
  %size = phi i64 [ 1, %entry ], [ %size.next, %measured ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %look, label %choose
look:
  %object.at = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %object.at, align 8
  %type.at = getelementptr i8, ptr %object, i64 {OBJECT_TYPE}
  %type = load ptr, ptr %type.at, align 8
  %is.array = icmp eq ptr %type, %array.type
  br i1 %is.array, label %measure, label %use.small
measure:
  %ndim.at = getelementptr i8, ptr %object, i64 {ARRAY_NDIM}
  %ndim = load i32, ptr %ndim.at, align 4
  %shape.at = getelementptr i8, ptr %object, i64 {ARRAY_SHAPE}
  %shape = load ptr, ptr %shape.at, align 8
  br label %axis
axis:
  %k = phi i32 [ 0, %measure ], [ %k.next, %extent ]
  %product = phi i64 [ 1, %measure ], [ %product.next, %extent ]
  %more = icmp slt i32 %k, %ndim
  br i1 %more, label %extent, label %measured
extent:
  %wide = zext i32 %k to i64
  %extent.at = getelementptr i64, ptr %shape, i64 %wide
  %length = load i64, ptr %extent.at, align 8
  %product.next = mul i64 %product, %length
  %k.next = add i32 %k, 1
  br label %axis
measured:
  %size.next = call i64 @llvm.umax.i64(i64 %size, i64 %product)
  %i.next = add i64 %i, 1
  br label %operand
choose:
  %is.large = icmp uge i64 %size, %limit
  br i1 %is.large, label %use.large, label %use.small
use.small:
  %small.at = getelementptr i64, ptr %context, i64 1
  %small = load ptr, ptr %small.at, align 8
  %small.result = tail call ptr %call(ptr %small, ptr %args, i64 %count, ptr null)
  ret ptr %small.result
use.large:
  %large.at = getelementptr i64, ptr %context, i64 2
  %large = load ptr, ptr %large.at, align 8
  %large.result = tail call ptr %call(ptr %large, ptr %args, i64 %count, ptr null)
  ret ptr %large.result
}}
"""
