"""The executor of programs, in LLVM's text form.

It walks the words written by `encoding.py`: puts together each launch's arguments in a table on
its stack, calls the kernel itself or through the pool, follows jumps, and returns at `Host` steps.

A merged launch is prepared part by part: each is written to the stack with its arguments. What the
pool then runs is `@parts`, which looks up whose the items are that it is given.
"""

from __future__ import annotations

from treadle.backends.cpu.evaluator_text import evaluator_text
from treadle.backends.cpu.layout import (
    CHANGED,
    ENDED,
    FIRST,
    JUMP,
    JUMP_WORDS,
    KIND,
    LAST,
    NO_POOL,
    NOT_DENSE,
    OPEN_END,
    OPEN_ITEMS,
    PART,
    PART_END,
    PART_GRAIN,
    PART_ITEMS,
    PART_KERNEL,
    PART_LENGTH,
    PART_WORDS,
    RUN,
    RUN_WORDS,
    SUMS,
    SUMS_WORDS,
    TOGETHER,
)
from treadle.backends.objects import ARRAY_DATA, ARRAY_FLAGS, OBJECT_SIZE, OBJECT_TYPE, TYPE_SIZE


def executor_text() -> str:
    """The part of the module that runs programs; needs `pool_text`."""
    walks = _walk("walk", ""), _walk("timed_walk", _TIMES)
    return "\n".join((_PARTS, *walks, _OBJECTS, _ENTRIES, evaluator_text()))


_TIMES = ", ptr %times"


def _walk(name: str, extra: str) -> str:
    """The executor's loop; with times, every launch's last start and end, time and turns."""
    stamps = {"START": "", "STOP": ""}
    if extra:
        stamps["START"] = f"""
  %row = shl i64 %number, 2
  %row.at = getelementptr i64, ptr %times, i64 %row
  %flags.at = getelementptr i64, ptr %word, i64 7
  %flags = load i64, ptr %flags.at, align 8
  %first.bit = and i64 %flags, {FIRST}
  %is.first = icmp ne i64 %first.bit, 0
  %before = load i64, ptr %row.at, align 8
  %begun = call i64 @nanoseconds()
  %start.new = select i1 %is.first, i64 %begun, i64 %before
  store i64 %start.new, ptr %row.at, align 8"""
        stamps["STOP"] = f"""
  %ended = call i64 @nanoseconds()
  %ended.at = getelementptr i64, ptr %row.at, i64 1
  store i64 %ended, ptr %ended.at, align 8
  %spent = sub i64 %ended, %begun
  %busy.at = getelementptr i64, ptr %row.at, i64 2
  %busy = load i64, ptr %busy.at, align 8
  %busy.new = add i64 %busy, %spent
  store i64 %busy.new, ptr %busy.at, align 8
  %turns.at = getelementptr i64, ptr %row.at, i64 3
  %turns = load i64, ptr %turns.at, align 8
  %last.bit = and i64 %flags, {LAST}
  %is.last = icmp ne i64 %last.bit, 0
  %turn = zext i1 %is.last to i64
  %turns.new = add i64 %turns, %turn
  store i64 %turns.new, ptr %turns.at, align 8"""
    text = _WALK.replace("NAME", name).replace("EXTRA", extra)
    return text.replace("  START", stamps["START"]).replace("  STOP", stamps["STOP"])


# The kernel of merged launches: units [lo, hi) of the parts that begin at `args`, in order.
_PARTS = f"""
define internal void @parts(ptr %args, i64 %lo, i64 %hi) {{
entry:
  br label %look
look:
  %part = phi ptr [ %args, %entry ], [ %part.next, %skip ]
  %begin = phi i64 [ 0, %entry ], [ %end, %skip ]
  %at = phi i64 [ %lo, %entry ], [ %at.next, %skip ]
  %some = icmp slt i64 %at, %hi
  br i1 %some, label %read, label %done
read:
  %end.at = getelementptr i64, ptr %part, i64 {PART_END}
  %end = load i64, ptr %end.at, align 8
  %mine = icmp slt i64 %at, %end
  br i1 %mine, label %run, label %skip
run:
  %kernel.at = getelementptr i64, ptr %part, i64 {PART_KERNEL}
  %kernel = load ptr, ptr %kernel.at, align 8
  %own = getelementptr i64, ptr %part, i64 {PART_WORDS}
  %grain.at = getelementptr i64, ptr %part, i64 {PART_GRAIN}
  %grain = load i64, ptr %grain.at, align 8
  %items.at = getelementptr i64, ptr %part, i64 {PART_ITEMS}
  %items = load i64, ptr %items.at, align 8
  %stop = call i64 @llvm.umin.i64(i64 %end, i64 %hi)
  %unit.lo = sub i64 %at, %begin
  %unit.hi = sub i64 %stop, %begin
  %own.lo = mul i64 %unit.lo, %grain
  %all.hi = mul i64 %unit.hi, %grain
  %own.hi = call i64 @llvm.umin.i64(i64 %all.hi, i64 %items)
  call void %kernel(ptr %own, i64 %own.lo, i64 %own.hi)
  br label %skip
skip:
  %at.next = phi i64 [ %at, %read ], [ %stop, %run ]
  %length.at = getelementptr i64, ptr %part, i64 {PART_LENGTH}
  %length = load i64, ptr %length.at, align 8
  %part.next = getelementptr i64, ptr %part, i64 %length
  br label %look
done:
  ret void
}}
"""

# A program starts with the most words of scratch memory any launch needs and, for every step, its
# first word.
_WALK = f"""
define internal i64 @NAME(ptr %pool, ptr %program, ptr %bases, i64 %first,
                           ptr %scratch EXTRA) {{
entry:
  br label %fetch
fetch:
  %at = phi i64 [ %first, %entry ], [ %next, %advance ],
                [ %chosen, %test ], [ %target, %jump ], [ %behind, %summed ]
  %word = getelementptr i64, ptr %program, i64 %at
  %coded = load i64, ptr %word, align 8
  %code = and i64 %coded, {KIND}
  %number.at = getelementptr i64, ptr %word, i64 1
  %number = load i64, ptr %number.at, align 8
  %w2.at = getelementptr i64, ptr %word, i64 2
  switch i64 %code, label %stop [ i64 {RUN}, label %run
                                  i64 {PART}, label %run
                                  i64 {TOGETHER}, label %run
                                  i64 {JUMP}, label %jump
                                  i64 {SUMS}, label %sums ]
stop:
  ret i64 %number
sums:
  %triples = load i64, ptr %w2.at, align 8
  %triple.words = mul i64 %triples, 3
  %sums.words = add i64 %triple.words, {SUMS_WORDS}
  %behind = add i64 %at, %sums.words
  br label %sum
sum:
  %t = phi i64 [ {SUMS_WORDS}, %sums ], [ %t.next, %add ]
  %t.left = icmp ult i64 %t, %sums.words
  br i1 %t.left, label %add, label %summed
add:
  %triple = getelementptr i64, ptr %word, i64 %t
  %sum.base = load i64, ptr %triple, align 8
  %x.base.at = getelementptr i64, ptr %triple, i64 1
  %x.base = load i64, ptr %x.base.at, align 8
  %y.base.at = getelementptr i64, ptr %triple, i64 2
  %y.base = load i64, ptr %y.base.at, align 8
  %x.at = getelementptr i64, ptr %bases, i64 %x.base
  %x = load i64, ptr %x.at, align 8
  %y.at = getelementptr i64, ptr %bases, i64 %y.base
  %y = load i64, ptr %y.at, align 8
  %x.and.y = add i64 %x, %y
  %sum.at = getelementptr i64, ptr %bases, i64 %sum.base
  store i64 %x.and.y, ptr %sum.at, align 8
  %t.next = add i64 %t, 3
  br label %sum
summed:
  br label %fetch
jump:
  %target = load i64, ptr %w2.at, align 8
  %jump.base.at = getelementptr i64, ptr %word, i64 3
  %jump.base = load i64, ptr %jump.base.at, align 8
  %always = icmp slt i64 %jump.base, 0
  br i1 %always, label %fetch, label %test
test:
  %fall = add i64 %at, {JUMP_WORDS}
  %jump.offset.at = getelementptr i64, ptr %word, i64 4
  %jump.offset = load i64, ptr %jump.offset.at, align 8
  %flag.base.at = getelementptr i64, ptr %bases, i64 %jump.base
  %flag.base = load ptr, ptr %flag.base.at, align 8
  %flag.at = getelementptr i8, ptr %flag.base, i64 %jump.offset
  %flag = load i8, ptr %flag.at, align 1
  %is.true = icmp ne i8 %flag, 0
  %chosen = select i1 %is.true, i64 %fall, i64 %target
  br label %fetch
run:
  %kernel = load ptr, ptr %w2.at, align 8
  %count.at = getelementptr i64, ptr %word, i64 3
  %count = load i64, ptr %count.at, align 8
  %items.at = getelementptr i64, ptr %word, i64 4
  %items.said = load i64, ptr %items.at, align 8
  %items = call i64 @number(i64 %coded, i64 {OPEN_ITEMS}, i64 %items.said, ptr %bases)
  %serial.at = getelementptr i64, ptr %word, i64 5
  %serial = load i64, ptr %serial.at, align 8
  %room.at = getelementptr i64, ptr %word, i64 6
  %room = load i64, ptr %room.at, align 8
  %table = getelementptr i64, ptr %scratch, i64 %room
  %pairs = getelementptr i64, ptr %word, i64 {RUN_WORDS}
  br label %bind
bind:
  %i = phi i64 [ 0, %run ], [ %i.next, %bound ]
  %left = icmp ult i64 %i, %count
  br i1 %left, label %pair, label %ready
pair:
  %pair.place = shl i64 %i, 1
  %base.at = getelementptr i64, ptr %pairs, i64 %pair.place
  %base = load i64, ptr %base.at, align 8
  %offset.at = getelementptr i64, ptr %base.at, i64 1
  %offset = load i64, ptr %offset.at, align 8
  %plain = icmp slt i64 %base, 0
  br i1 %plain, label %bound, label %resolve
resolve:
  %address.at = getelementptr i64, ptr %bases, i64 %base
  %address = load i64, ptr %address.at, align 8
  %moved = add i64 %address, %offset
  br label %bound
bound:
  %value = phi i64 [ %offset, %pair ], [ %moved, %resolve ]
  %slot = getelementptr i64, ptr %table, i64 %i
  store i64 %value, ptr %slot, align 8
  %i.next = add i64 %i, 1
  br label %bind
ready:
  %partial = icmp eq i64 %code, {PART}
  br i1 %partial, label %note, label %begin
note:
  %part = getelementptr i64, ptr %table, i64 -{PART_WORDS}
  %part.kernel = getelementptr i64, ptr %part, i64 {PART_KERNEL}
  store ptr %kernel, ptr %part.kernel, align 8
  %part.end = getelementptr i64, ptr %part, i64 {PART_END}
  %end.at = getelementptr i64, ptr %word, i64 7
  %end.said = load i64, ptr %end.at, align 8
  %end = call i64 @number(i64 %coded, i64 {OPEN_END}, i64 %end.said, ptr %bases)
  store i64 %end, ptr %part.end, align 8
  %part.grain = getelementptr i64, ptr %part, i64 {PART_GRAIN}
  store i64 %serial, ptr %part.grain, align 8
  %part.items = getelementptr i64, ptr %part, i64 {PART_ITEMS}
  store i64 %items, ptr %part.items, align 8
  %part.words = add i64 %count, {PART_WORDS}
  %part.length = getelementptr i64, ptr %part, i64 {PART_LENGTH}
  store i64 %part.words, ptr %part.length, align 8
  br label %advance
begin:
  START
  %merged = icmp eq i64 %code, {TOGETHER}
  %job = select i1 %merged, ptr @parts, ptr %kernel
  %is.serial = icmp ne i64 %serial, 0
  %is.one = icmp ult i64 %items, 2
  %by.caller = or i1 %is.serial, %is.one
  br i1 %by.caller, label %alone, label %shared
alone:
  call void %job(ptr %table, i64 0, i64 %items)
  br label %launched
shared:
  call void @launch(ptr %pool, ptr %job, ptr %table, i64 %items)
  br label %launched
launched:
  STOP
  br label %advance
advance:
  %words = shl i64 %count, 1
  %length = add i64 %words, {RUN_WORDS}
  %next = add i64 %at, %length
  br label %fetch
}}
"""

# What `@treadle_call` looks at before it runs. A watch is an array of words: the offset of a slot,
# the number of objects that have one, a tuple of them, a tuple of what the slots should hold, the
# number of positions in the latter whose objects nobody else may hold, where these are, and the
# references that such an object has at most.
_OBJECTS = f"""
; A tuple's items, which follow as many bytes as its type says: files run on interpreters other than
; the one that compiled them.
define internal ptr @items(ptr %tuple) alwaysinline {{
  %type.at = getelementptr i8, ptr %tuple, i64 {OBJECT_TYPE}
  %type = load ptr, ptr %type.at, align 8
  %size.at = getelementptr i8, ptr %type, i64 {TYPE_SIZE}
  %size = load i64, ptr %size.at, align 8
  %items = getelementptr i8, ptr %tuple, i64 %size
  ret ptr %items
}}

define internal i1 @unchanged(ptr %watch) {{
entry:
  %words.at = getelementptr i8, ptr %watch, i64 {ARRAY_DATA}
  %words = load ptr, ptr %words.at, align 8
  %offset = load i64, ptr %words, align 8
  %count.at = getelementptr i64, ptr %words, i64 1
  %count = load i64, ptr %count.at, align 8
  %holders.at = getelementptr i64, ptr %words, i64 2
  %holders = load ptr, ptr %holders.at, align 8
  %seen.at = getelementptr i64, ptr %words, i64 3
  %seen = load ptr, ptr %seen.at, align 8
  %own.at = getelementptr i64, ptr %words, i64 4
  %own = load i64, ptr %own.at, align 8
  %places.at = getelementptr i64, ptr %words, i64 5
  %places = load ptr, ptr %places.at, align 8
  %limit.at = getelementptr i64, ptr %words, i64 6
  %limit = load i64, ptr %limit.at, align 8
  %holder.items = call ptr @items(ptr %holders)
  %seen.items = call ptr @items(ptr %seen)
  br label %slot
slot:
  %i = phi i64 [ 0, %entry ], [ %i.next, %look ]
  %some = icmp ult i64 %i, %count
  br i1 %some, label %look, label %owned
look:
  %holder.at = getelementptr ptr, ptr %holder.items, i64 %i
  %holder = load ptr, ptr %holder.at, align 8
  %now.at = getelementptr i8, ptr %holder, i64 %offset
  %now = load ptr, ptr %now.at, align 8
  %was.at = getelementptr ptr, ptr %seen.items, i64 %i
  %was = load ptr, ptr %was.at, align 8
  %i.next = add i64 %i, 1
  %equal = icmp eq ptr %now, %was
  br i1 %equal, label %slot, label %no
owned:
  %k = phi i64 [ 0, %slot ], [ %k.next, %count.references ]
  %more = icmp ult i64 %k, %own
  br i1 %more, label %count.references, label %yes
count.references:
  %place.at = getelementptr i64, ptr %places, i64 %k
  %place = load i64, ptr %place.at, align 8
  %object.at = getelementptr ptr, ptr %seen.items, i64 %place
  %object = load ptr, ptr %object.at, align 8
  %references.32 = load i32, ptr %object, align 4
  %references = zext i32 %references.32 to i64
  %k.next = add i64 %k, 1
  %alone = icmp ule i64 %references, %limit
  br i1 %alone, label %owned, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

; The data of a tuple's arrays as bases: of the first ones from 0 on, of the rest from `at` on.
define internal i1 @bind(ptr %an.array, ptr %bases, ptr %arrays, i64 %given, i64 %at) {{
entry:
  %type.at = getelementptr i8, ptr %an.array, i64 {OBJECT_TYPE}
  %type = load ptr, ptr %type.at, align 8
  %size.at = getelementptr i8, ptr %arrays, i64 {OBJECT_SIZE}
  %size = load i64, ptr %size.at, align 8
  %items = call ptr @items(ptr %arrays)
  %shift = sub i64 %at, %given
  br label %array
array:
  %i = phi i64 [ 0, %entry ], [ %i.next, %dense ]
  %some = icmp ult i64 %i, %size
  br i1 %some, label %look, label %yes
look:
  %object.at = getelementptr ptr, ptr %items, i64 %i
  %object = load ptr, ptr %object.at, align 8
  %object.type.at = getelementptr i8, ptr %object, i64 {OBJECT_TYPE}
  %object.type = load ptr, ptr %object.type.at, align 8
  %is.array = icmp eq ptr %object.type, %type
  br i1 %is.array, label %check, label %no
check:
  %flags.at = getelementptr i8, ptr %object, i64 {ARRAY_FLAGS}
  %flags = load i32, ptr %flags.at, align 4
  %bit = and i32 %flags, 1
  %is.dense = icmp ne i32 %bit, 0
  br i1 %is.dense, label %dense, label %no
dense:
  %data.at = getelementptr i8, ptr %object, i64 {ARRAY_DATA}
  %data = load i64, ptr %data.at, align 8
  %first = icmp ult i64 %i, %given
  %later = add i64 %i, %shift
  %base = select i1 %first, i64 %i, i64 %later
  %base.at = getelementptr i64, ptr %bases, i64 %base
  store i64 %data, ptr %base.at, align 8
  %i.next = add i64 %i, 1
  br label %array
yes:
  ret i1 true
no:
  ret i1 false
}}
"""

_ENTRIES = f"""
define internal i64 @number(i64 %code, i64 %bit, i64 %word, ptr %bases) alwaysinline {{
  %is.open = and i64 %code, %bit
  %open = icmp ne i64 %is.open, 0
  %place = select i1 %open, i64 %word, i64 0
  %at = getelementptr i64, ptr %bases, i64 %place
  %held = load i64, ptr %at, align 8
  %found = select i1 %open, i64 %held, i64 %word
  ret i64 %found
}}

define internal i64 @word_of(ptr %program, i64 %step) {{
  %place = add i64 %step, 1
  %at = getelementptr i64, ptr %program, i64 %place
  %word = load i64, ptr %at, align 8
  ret i64 %word
}}

define i64 @treadle_run(ptr %pool, ptr %program, ptr %array, i64 %step) {{
  %awake = icmp ne ptr %pool, null
  br i1 %awake, label %go, label %asleep
asleep:
  ret i64 {NO_POOL}
go:
  %data.at = getelementptr i8, ptr %array, i64 {ARRAY_DATA}
  %bases = load ptr, ptr %data.at, align 8
  %most = load i64, ptr %program, align 8
  %scratch = alloca i64, i64 %most, align 16
  %first = call i64 @word_of(ptr %program, i64 %step)
  %reached = call i64 @walk(ptr %pool, ptr %program, ptr %bases, i64 %first,
                            ptr %scratch)
  ret i64 %reached
}}

define i64 @treadle_call(ptr %pool, ptr %program, ptr %array, ptr %arrays, i64 %given, i64 %at,
                         ptr %watch) {{
entry:
  %data.at = getelementptr i8, ptr %array, i64 {ARRAY_DATA}
  %bases = load ptr, ptr %data.at, align 8
  %same = call i1 @unchanged(ptr %watch)
  br i1 %same, label %bind, label %changed
changed:
  ret i64 {CHANGED}
bind:
  %dense = call i1 @bind(ptr %array, ptr %bases, ptr %arrays, i64 %given, i64 %at)
  br i1 %dense, label %go, label %sparse
sparse:
  ret i64 {NOT_DENSE}
go:
  %most = load i64, ptr %program, align 8
  %scratch = alloca i64, i64 %most, align 16
  %first = call i64 @word_of(ptr %program, i64 0)
  %reached = call i64 @walk(ptr %pool, ptr %program, ptr %bases, i64 %first,
                            ptr %scratch)
  ret i64 %reached
}}

define i64 @treadle_profile(ptr %pool, ptr %program, ptr %bases, i64 %step, ptr %times) {{
  %most = load i64, ptr %program, align 8
  %scratch = alloca i64, i64 %most, align 16
  %first = call i64 @word_of(ptr %program, i64 %step)
  %reached = call i64 @timed_walk(ptr %pool, ptr %program, ptr %bases, i64 %first,
                                  ptr %scratch, ptr %times)
  ret i64 %reached
}}

define i64 @treadle_repeat(ptr %pool, ptr %program, ptr %bases, ptr %varying, i64 %width,
                            i64 %turns, ptr %progress, i64 %most.time) {{
entry:
  %most = load i64, ptr %program, align 8
  %scratch = alloca i64, i64 %most, align 16
  %first = call i64 @word_of(ptr %program, i64 0)
  %began = call i64 @nanoseconds()
  br label %turn
turn:
  %done = load i64, ptr %progress, align 8
  %left = icmp ult i64 %done, %turns
  br i1 %left, label %rebase, label %leave
rebase:
  %row.place = mul i64 %done, %width
  %row = getelementptr i64, ptr %varying, i64 %row.place
  br label %column
column:
  %i = phi i64 [ 0, %rebase ], [ %i.next, %copy ]
  %some = icmp ult i64 %i, %width
  br i1 %some, label %copy, label %walk
copy:
  %from = getelementptr i64, ptr %row, i64 %i
  %base = load i64, ptr %from, align 8
  %to = getelementptr i64, ptr %bases, i64 %i
  store i64 %base, ptr %to, align 8
  %i.next = add i64 %i, 1
  br label %column
walk:
  %reached = call i64 @walk(ptr %pool, ptr %program, ptr %bases, i64 %first,
                            ptr %scratch)
  %ended = icmp slt i64 %reached, 0
  br i1 %ended, label %count, label %finish
count:
  %done.next = add i64 %done, 1
  store i64 %done.next, ptr %progress, align 8
  %now = call i64 @nanoseconds()
  %elapsed = sub i64 %now, %began
  %late = icmp sgt i64 %elapsed, %most.time
  br i1 %late, label %leave, label %turn
leave:
  ret i64 {ENDED}
finish:
  ret i64 %reached
}}
"""
