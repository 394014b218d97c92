"""Views, in LLVM's text form: kernels that PyTorch calls by its stable C interface.

A kernel gets words: handles of tensors and of lists, which it owns, and addresses of optional
values; it leaves its result in the first one. A view is a tensor on the same storage
(`aoti_torch__reinterpret_tensor`, which adds to the tensor's offset). What PyTorch would refuse is
asked of PyTorch on a tensor without memory; what that says is raised. The function that raises
takes the kernel's place on the stack, so nothing has to be known of how to unwind it.
"""

from __future__ import annotations

from treadle.interop.torch.native.layout import MOST_AXES
from treadle.interop.torch.native.words import known


def views_text() -> str:
    """The part of the module for views; needs the context."""
    return "\n".join((_LISTS, _REFUSE, _FITS, _AS_STRIDED, _ALIAS, _SPLIT, _VIEW))


VIEWS = {"as_strided": "as_strided", "_reshape_alias": "reshape_alias", "view": "view"}
"""Operators by name, and the functions for them."""


_LISTS = f"""
define internal i64 @axes_of(ptr %list) {{
  %count = alloca i64, align 8
  store i64 {MOST_AXES + 1}, ptr %count, align 8
{known("size", "list_size")}
  %failed = call i32 %size(ptr %list, ptr %count)
  %found = load i64, ptr %count, align 8
  ret i64 %found
}}

define internal void @read_list(ptr %list, i64 %count, ptr %to) {{
entry:
{known("item", "list_item")}
  br label %element
element:
  %i = phi i64 [ 0, %entry ], [ %i.next, %get ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %get, label %done
get:
  %at = getelementptr i64, ptr %to, i64 %i
  %failed = call i32 %item(ptr %list, i64 %i, ptr %at)
  %i.next = add i64 %i, 1
  br label %element
done:
  ret void
}}

define internal void @free_list(ptr %list) {{
{known("free", "list_free")}
  %failed = call i32 %free(ptr %list)
  ret void
}}

define internal void @finish(ptr %stack, i64 %ndim, ptr %sizes, ptr %strides, i64 %further) {{
  %made = alloca ptr, align 8
  store ptr null, ptr %made, align 8
  %tensor = load ptr, ptr %stack, align 8
{known("view", "reinterpret")}
  %failed = call i32 %view(ptr %tensor, i64 %ndim, ptr %sizes, ptr %strides, i64 %further,
                           ptr %made)
{known("free", "tensor_free")}
  %kept = call i32 %free(ptr %tensor)
  %result = load ptr, ptr %made, align 8
  store ptr %result, ptr %stack, align 8
  ret void
}}
"""


_ODD = "sizes, strides and offset reach beyond the memory of the tensor"

# What PyTorch says of the call on a tensor without memory: its text, which lives on.
_REFUSE = f"""
@odd = internal constant [{len(_ODD) + 1} x i8] c"{_ODD}\\00", align 1
@empty = internal constant [1 x i8] zeroinitializer, align 1
@file = internal constant [8 x i8] c"treadle\\00", align 1

define internal ptr @asked(ptr %stack, ptr %operator) {{
entry:
  %size = alloca ptr, align 8
  %stride = alloca ptr, align 8
  %axes = alloca i64, align 8
  %type = alloca i32, align 4
  %meta = alloca ptr, align 8
  store i64 0, ptr %axes, align 8
  store i32 0, ptr %type, align 4
  store ptr null, ptr %meta, align 8
  %tensor = load ptr, ptr %stack, align 8
{known("ndim", "ndim")}
  %e0 = call i32 %ndim(ptr %tensor, ptr %axes)
{known("sizes", "sizes")}
  %e1 = call i32 %sizes(ptr %tensor, ptr %size)
{known("strides", "strides")}
  %e2 = call i32 %strides(ptr %tensor, ptr %stride)
{known("type.of", "type_of")}
  %e3 = call i32 %type.of(ptr %tensor, ptr %type)
  %count = load i64, ptr %axes, align 8
  %size.found = load ptr, ptr %size, align 8
  %stride.found = load ptr, ptr %stride, align 8
  %type.found = load i32, ptr %type, align 4
{known("kind", "meta", "i64")}
  %kind.short = trunc i64 %kind to i32
{known("empty", "empty_strided")}
  %e4 = call i32 %empty(i64 %count, ptr %size.found, ptr %stride.found, i32 %type.found,
                        i32 %kind.short, i32 0, ptr %meta)
{known("free", "tensor_free")}
  %e5 = call i32 %free(ptr %tensor)
  %meta.found = load ptr, ptr %meta, align 8
  store ptr %meta.found, ptr %stack, align 8
{known("dispatch", "dispatch")}
{known("built", "built", "i64")}
  %refused = call i32 %dispatch(ptr %operator, ptr @empty, ptr %stack, i64 %built)
  %is.refused = icmp ne i32 %refused, 0
  br i1 %is.refused, label %told, label %untold
told:
{known("what", "what")}
  %text = call ptr %what()
  ret ptr %text
untold:
  ret ptr @odd
}}
"""


# Whether a view stays inside of a tensor's storage, as `as_strided` checks it. PyTorch's function
# that makes it must not fail, which it does where there are more elements than a word counts.
_FITS = f"""
define internal i1 @fits(ptr %tensor, i64 %ndim, ptr %sizes, ptr %strides, i64 %offset) {{
entry:
  %bytes = alloca i64, align 8
  %type = alloca i32, align 4
  %is.behind = icmp sge i64 %offset, 0
  br i1 %is.behind, label %axis, label %out
axis:
  %i = phi i64 [ 0, %entry ], [ %i.next, %counted ]
  %end = phi i64 [ %offset, %entry ], [ %end.next, %counted ]
  %product = phi i64 [ 1, %entry ], [ %product.next, %counted ]
  %some = phi i1 [ true, %entry ], [ %some.next, %counted ]
  %more = icmp ult i64 %i, %ndim
  br i1 %more, label %look, label %last
look:
  %size.at = getelementptr i64, ptr %sizes, i64 %i
  %size = load i64, ptr %size.at, align 8
  %stride.at = getelementptr i64, ptr %strides, i64 %i
  %stride = load i64, ptr %stride.at, align 8
  %least = call i64 @llvm.smin.i64(i64 %size, i64 %stride)
  %is.fine = icmp sge i64 %least, 0
  br i1 %is.fine, label %counted, label %out
counted:
  %reach = sub i64 %size, 1
  %span.made = call {{i64, i1}} @llvm.smul.with.overflow.i64(i64 %reach, i64 %stride)
  %span = extractvalue {{i64, i1}} %span.made, 0
  %span.over = extractvalue {{i64, i1}} %span.made, 1
  %end.made = call {{i64, i1}} @llvm.sadd.with.overflow.i64(i64 %end, i64 %span)
  %end.next = extractvalue {{i64, i1}} %end.made, 0
  %end.over = extractvalue {{i64, i1}} %end.made, 1
  %product.made = call {{i64, i1}} @llvm.smul.with.overflow.i64(i64 %product, i64 %size)
  %product.next = extractvalue {{i64, i1}} %product.made, 0
  %product.over = extractvalue {{i64, i1}} %product.made, 1
  %reach.over = or i1 %span.over, %end.over
  %is.over = or i1 %reach.over, %product.over
  %has = icmp ne i64 %size, 0
  %some.next = and i1 %some, %has
  %i.next = add i64 %i, 1
  br i1 %is.over, label %out, label %axis
last:
  br i1 %some, label %measure, label %yes
measure:
  store i64 0, ptr %bytes, align 8
  store i32 0, ptr %type, align 4
{known("storage", "storage_bytes")}
  %e0 = call i32 %storage(ptr %tensor, ptr %bytes)
{known("type.of", "type_of")}
  %e1 = call i32 %type.of(ptr %tensor, ptr %type)
  %type.found = load i32, ptr %type, align 4
{known("element", "element_bytes")}
  %itemsize = call i64 %element(i32 %type.found)
  %room = load i64, ptr %bytes, align 8
  %count = add i64 %end, 1
  %needed = mul i64 %count, %itemsize
  %is.near = icmp slt i64 %end, %room
  %is.short = icmp sle i64 %needed, %room
  %inside = and i1 %is.near, %is.short
  ret i1 %inside
yes:
  ret i1 true
out:
  ret i1 false
}}

declare i64 @llvm.smin.i64(i64, i64)
declare {{i64, i1}} @llvm.smul.with.overflow.i64(i64, i64)
declare {{i64, i1}} @llvm.sadd.with.overflow.i64(i64, i64)
"""


def _begin(sizes: int, strides: int | None) -> str:
    """Read the lists of a call; what has too many axes is refused."""
    lines = f"""  %sizes = alloca i64, i64 {MOST_AXES}, align 8
  %strides = alloca i64, i64 {MOST_AXES}, align 8
  %offset = alloca i64, align 8
  store i64 0, ptr %offset, align 8
  %tensor = load ptr, ptr %stack, align 8
  %size.list.at = getelementptr ptr, ptr %stack, i64 {sizes}
  %size.list = load ptr, ptr %size.list.at, align 8
  %ndim = call i64 @axes_of(ptr %size.list)"""
    if strides is None:
        return f"""{lines}
  %is.few = icmp ule i64 %ndim, {MOST_AXES}
  br i1 %is.few, label %lists, label %refuse
lists:
  call void @read_list(ptr %size.list, i64 %ndim, ptr %sizes)"""
    return f"""{lines}
  %stride.list.at = getelementptr ptr, ptr %stack, i64 {strides}
  %stride.list = load ptr, ptr %stride.list.at, align 8
  %stride.axes = call i64 @axes_of(ptr %stride.list)
  %is.same = icmp eq i64 %ndim, %stride.axes
  %is.short = icmp ule i64 %ndim, {MOST_AXES}
  %is.few = and i1 %is.same, %is.short
  br i1 %is.few, label %lists, label %refuse
lists:
  call void @read_list(ptr %size.list, i64 %ndim, ptr %sizes)
  call void @read_list(ptr %stride.list, i64 %ndim, ptr %strides)"""


_RAISE = f"""  %text = call ptr @asked(ptr %stack, ptr @name.FUNCTION)
{known("fail", "raise")}
  tail call void %fail(i1 zeroext false, ptr @file, ptr @file, i32 0, ptr %text)
  ret void"""


def _raise(function: str) -> str:
    return _RAISE.replace("FUNCTION", function)


def _name(function: str, operator: str) -> str:
    text = f"aten::{operator}"
    return f'@name.{function} = internal constant [{len(text) + 1} x i8] c"{text}\\00", align 1'


_AS_STRIDED = f"""
{_name("as_strided", "as_strided")}

define void @treadle_torch_as_strided(ptr %stack, i64 %inputs, i64 %outputs) {{
entry:
{_begin(1, 2)}
  %given.at = getelementptr ptr, ptr %stack, i64 3
  %given = load ptr, ptr %given.at, align 8
  %is.given = icmp ne ptr %given, null
{known("where", "offset")}
  %e0 = call i32 %where(ptr %tensor, ptr %offset)
  %own = load i64, ptr %offset, align 8
  br i1 %is.given, label %take, label %check
take:
  %given.offset = load i64, ptr %given, align 8
  br label %check
check:
  %at = phi i64 [ %own, %lists ], [ %given.offset, %take ]
  %further = sub i64 %at, %own
  %is.inside = call i1 @fits(ptr %tensor, i64 %ndim, ptr %sizes, ptr %strides, i64 %at)
  br i1 %is.inside, label %make, label %refuse
make:
  call void @free_list(ptr %size.list)
  call void @free_list(ptr %stride.list)
  br i1 %is.given, label %free, label %finish
free:
{known("drop", "value_free")}
  %e1 = call i32 %drop(ptr %given)
  br label %finish
finish:
  call void @finish(ptr %stack, i64 %ndim, ptr %sizes, ptr %strides, i64 %further)
  ret void
refuse:
{_raise("as_strided")}
}}
"""


_ALIAS = f"""
{_name("reshape_alias", "_reshape_alias")}

define void @treadle_torch_reshape_alias(ptr %stack, i64 %inputs, i64 %outputs) {{
entry:
{_begin(1, 2)}
{known("where", "offset")}
  %e0 = call i32 %where(ptr %tensor, ptr %offset)
  %at = load i64, ptr %offset, align 8
  %is.inside = call i1 @fits(ptr %tensor, i64 %ndim, ptr %sizes, ptr %strides, i64 %at)
  br i1 %is.inside, label %make, label %refuse
make:
  call void @free_list(ptr %size.list)
  call void @free_list(ptr %stride.list)
  call void @finish(ptr %stack, i64 %ndim, ptr %sizes, ptr %strides, i64 0)
  ret void
refuse:
{_raise("reshape_alias")}
}}
"""


# The sizes that are asked for, one of which may be -1; and strides for them, as PyTorch's
# `computeStride` finds them: axes that lie behind one another in memory form a chunk, and every
# chunk is split as the new sizes say.
_SPLIT = """
define internal i1 @infer(i64 %ndim, ptr %sizes, i64 %elements) {
entry:
  br label %axis
axis:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %product = phi i64 [ 1, %entry ], [ %product.next, %next ]
  %open = phi i64 [ -1, %entry ], [ %open.next, %next ]
  %more = icmp ult i64 %i, %ndim
  br i1 %more, label %look, label %last
look:
  %size.at = getelementptr i64, ptr %sizes, i64 %i
  %size = load i64, ptr %size.at, align 8
  %is.open = icmp eq i64 %size, -1
  br i1 %is.open, label %unknown, label %plain
unknown:
  %is.first = icmp eq i64 %open, -1
  br i1 %is.first, label %next, label %out
plain:
  %is.size = icmp sge i64 %size, 0
  br i1 %is.size, label %next, label %out
next:
  %factor = phi i64 [ 1, %unknown ], [ %size, %plain ]
  %open.next = phi i64 [ %i, %unknown ], [ %open, %plain ]
  %product.made = call {i64, i1} @llvm.smul.with.overflow.i64(i64 %product, i64 %factor)
  %product.next = extractvalue {i64, i1} %product.made, 0
  %is.over = extractvalue {i64, i1} %product.made, 1
  %i.next = add i64 %i, 1
  br i1 %is.over, label %out, label %axis
last:
  %has.open = icmp sge i64 %open, 0
  br i1 %has.open, label %divide, label %compare
compare:
  %is.equal = icmp eq i64 %product, %elements
  ret i1 %is.equal
divide:
  %is.some = icmp ne i64 %product, 0
  br i1 %is.some, label %quotient, label %out
quotient:
  %found = sdiv i64 %elements, %product
  %whole = mul i64 %found, %product
  %is.whole = icmp eq i64 %whole, %elements
  %open.at = getelementptr i64, ptr %sizes, i64 %open
  store i64 %found, ptr %open.at, align 8
  ret i1 %is.whole
out:
  ret i1 false
}

define internal void @row_major(i64 %ndim, ptr %sizes, ptr %strides) {
entry:
  br label %axis
axis:
  %k = phi i64 [ %ndim, %entry ], [ %k.next, %look ]
  %stride = phi i64 [ 1, %entry ], [ %stride.next, %look ]
  %more = icmp ugt i64 %k, 0
  br i1 %more, label %look, label %done
look:
  %k.next = sub i64 %k, 1
  %stride.at = getelementptr i64, ptr %strides, i64 %k.next
  store i64 %stride, ptr %stride.at, align 8
  %size.at = getelementptr i64, ptr %sizes, i64 %k.next
  %size = load i64, ptr %size.at, align 8
  %some = call i64 @llvm.smax.i64(i64 %size, i64 1)
  %stride.next = mul i64 %stride, %some
  br label %axis
done:
  ret void
}

declare i64 @llvm.smax.i64(i64, i64)

define internal i1 @split(i64 %old.ndim, ptr %old.sizes, ptr %old.strides, i64 %ndim, ptr %sizes,
                          ptr %strides) {
entry:
  %old.last = sub i64 %old.ndim, 1
  %first.base.at = getelementptr i64, ptr %old.strides, i64 %old.last
  %first.base = load i64, ptr %first.base.at, align 8
  br label %old
old:
  %d = phi i64 [ %old.last, %entry ], [ %d.next, %onward ]
  %v = phi i64 [ %ndim, %entry ], [ %v.onward, %onward ]
  %base = phi i64 [ %first.base, %entry ], [ %base.onward, %onward ]
  %chunk = phi i64 [ 1, %entry ], [ %chunk.onward, %onward ]
  %viewed = phi i64 [ 1, %entry ], [ %viewed.onward, %onward ]
  %more = icmp sge i64 %d, 0
  br i1 %more, label %grow, label %done
grow:
  %old.size.at = getelementptr i64, ptr %old.sizes, i64 %d
  %old.size = load i64, ptr %old.size.at, align 8
  %chunk.grown = mul i64 %chunk, %old.size
  %d.next = sub i64 %d, 1
  %is.outermost = icmp eq i64 %d, 0
  br i1 %is.outermost, label %spread, label %joined
joined:
  %outer.size.at = getelementptr i64, ptr %old.sizes, i64 %d.next
  %outer.size = load i64, ptr %outer.size.at, align 8
  %outer.stride.at = getelementptr i64, ptr %old.strides, i64 %d.next
  %outer.stride = load i64, ptr %outer.stride.at, align 8
  %end = mul i64 %chunk.grown, %base
  %has.outer = icmp ne i64 %outer.size, 1
  %is.apart = icmp ne i64 %outer.stride, %end
  %is.chunk = and i1 %has.outer, %is.apart
  br i1 %is.chunk, label %spread, label %onward
spread:
  %w = phi i64 [ %v, %grow ], [ %v, %joined ], [ %w.next, %put ]
  %seen = phi i64 [ %viewed, %grow ], [ %viewed, %joined ], [ %seen.next, %put ]
  %left = icmp ugt i64 %w, 0
  br i1 %left, label %consider, label %spent
consider:
  %w.next = sub i64 %w, 1
  %size.at = getelementptr i64, ptr %sizes, i64 %w.next
  %size = load i64, ptr %size.at, align 8
  %is.small = icmp slt i64 %seen, %chunk.grown
  %is.one = icmp eq i64 %size, 1
  %belongs = or i1 %is.small, %is.one
  br i1 %belongs, label %put, label %spent
put:
  %stride = mul i64 %seen, %base
  %stride.at = getelementptr i64, ptr %strides, i64 %w.next
  store i64 %stride, ptr %stride.at, align 8
  %seen.next = mul i64 %seen, %size
  br label %spread
spent:
  %is.exact = icmp eq i64 %seen, %chunk.grown
  br i1 %is.exact, label %next.chunk, label %out
next.chunk:
  br i1 %is.outermost, label %onward, label %outer.chunk
outer.chunk:
  %outer.base.at = getelementptr i64, ptr %old.strides, i64 %d.next
  %outer.base = load i64, ptr %outer.base.at, align 8
  br label %onward
onward:
  %v.onward = phi i64 [ %v, %joined ], [ %w, %next.chunk ], [ %w, %outer.chunk ]
  %base.onward = phi i64 [ %base, %joined ], [ %base, %next.chunk ], [ %outer.base, %outer.chunk ]
  %chunk.onward = phi i64 [ %chunk.grown, %joined ], [ 1, %next.chunk ], [ 1, %outer.chunk ]
  %viewed.onward = phi i64 [ %viewed, %joined ], [ 1, %next.chunk ], [ 1, %outer.chunk ]
  br label %old
done:
  %is.spent = icmp eq i64 %v, 0
  ret i1 %is.spent
out:
  ret i1 false
}
"""

_VIEW = f"""
{_name("view", "view")}

define void @treadle_torch_view(ptr %stack, i64 %inputs, i64 %outputs) {{
entry:
  %old.count = alloca i64, align 8
  %old.size = alloca ptr, align 8
  %old.stride = alloca ptr, align 8
{_begin(1, None)}
{known("axes", "ndim")}
  %e0 = call i32 %axes(ptr %tensor, ptr %old.count)
{known("get.sizes", "sizes")}
  %e1 = call i32 %get.sizes(ptr %tensor, ptr %old.size)
{known("get.strides", "strides")}
  %e2 = call i32 %get.strides(ptr %tensor, ptr %old.stride)
  %old.ndim = load i64, ptr %old.count, align 8
  %old.sizes = load ptr, ptr %old.size, align 8
  %old.strides = load ptr, ptr %old.stride, align 8
  br label %count
count:
  %i = phi i64 [ 0, %lists ], [ %i.next, %counted ]
  %elements = phi i64 [ 1, %lists ], [ %elements.next, %counted ]
  %more = icmp ult i64 %i, %old.ndim
  br i1 %more, label %counted, label %infer
counted:
  %old.at = getelementptr i64, ptr %old.sizes, i64 %i
  %old.extent = load i64, ptr %old.at, align 8
  %elements.next = mul i64 %elements, %old.extent
  %i.next = add i64 %i, 1
  br label %count
infer:
  %is.whole = call i1 @infer(i64 %ndim, ptr %sizes, i64 %elements)
  br i1 %is.whole, label %choose, label %refuse
choose:
  %is.number = icmp eq i64 %old.ndim, 0
  br i1 %is.number, label %simple, label %measured
measured:
  %is.empty = icmp eq i64 %elements, 0
  br i1 %is.empty, label %empty, label %chunks
empty:
  %same.ndim = icmp eq i64 %ndim, %old.ndim
  br i1 %same.ndim, label %copy, label %simple
copy:
  %c = phi i64 [ 0, %empty ], [ %c.next, %copied ]
  %some = icmp ult i64 %c, %ndim
  br i1 %some, label %copied, label %make
copied:
  %from.at = getelementptr i64, ptr %old.strides, i64 %c
  %from = load i64, ptr %from.at, align 8
  %to.at = getelementptr i64, ptr %strides, i64 %c
  store i64 %from, ptr %to.at, align 8
  %mine.at = getelementptr i64, ptr %sizes, i64 %c
  %mine = load i64, ptr %mine.at, align 8
  %its.at = getelementptr i64, ptr %old.sizes, i64 %c
  %its = load i64, ptr %its.at, align 8
  %is.same = icmp eq i64 %mine, %its
  %c.next = add i64 %c, 1
  br i1 %is.same, label %copy, label %simple
simple:
  call void @row_major(i64 %ndim, ptr %sizes, ptr %strides)
  br label %make
chunks:
  %is.split = call i1 @split(i64 %old.ndim, ptr %old.sizes, ptr %old.strides, i64 %ndim,
                             ptr %sizes, ptr %strides)
  br i1 %is.split, label %make, label %refuse
make:
  call void @free_list(ptr %size.list)
  call void @finish(ptr %stack, i64 %ndim, ptr %sizes, ptr %strides, i64 0)
  ret void
refuse:
{_raise("view")}
}}
"""
