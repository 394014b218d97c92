"""The evaluator of straight-line byte code of integers, in LLVM's text form."""

from __future__ import annotations

from treadle.base.arithmetic import (
    ADD,
    DIVIDE,
    DONE,
    LEAST,
    MOST,
    MULTIPLY,
    NOT_NEGATIVE,
    NOT_ZERO,
    OVERFLOW,
    REMAINDER,
    ZERO,
)


def evaluator_text() -> str:
    """The part of the module that does what `base.arithmetic.evaluate` does."""
    return _EVALUATE


_EVALUATE = f"""
declare {{ i64, i1 }} @llvm.sadd.with.overflow.i64(i64, i64)
declare {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define i64 @treadle_evaluate(ptr %rows, i64 %count, ptr %registers) {{
entry:
  br label %fetch
fetch:
  %i = phi i64 [ 0, %entry ], [ %i.next, %write ], [ %i.next, %asked ]
  %left = icmp ult i64 %i, %count
  br i1 %left, label %read, label %done
done:
  ret i64 {DONE}
wide:
  ret i64 {OVERFLOW}
no:
  ret i64 %i
read:
  %i.next = add i64 %i, 1
  %row = getelementptr [4 x i32], ptr %rows, i64 %i
  %code = load i32, ptr %row, align 4
  %x.at = getelementptr i32, ptr %row, i64 2
  %x.number = load i32, ptr %x.at, align 4
  %x.place = getelementptr i64, ptr %registers, i32 %x.number
  %x = load i64, ptr %x.place, align 8
  %y.at = getelementptr i32, ptr %row, i64 3
  %y.number = load i32, ptr %y.at, align 4
  %y.place = getelementptr i64, ptr %registers, i32 %y.number
  %y = load i64, ptr %y.place, align 8
  switch i32 %code, label %wide [ i32 {ADD}, label %add
                                  i32 {MULTIPLY}, label %multiply
                                  i32 {DIVIDE}, label %divide
                                  i32 {REMAINDER}, label %divide
                                  i32 {LEAST}, label %least
                                  i32 {MOST}, label %most
                                  i32 {ZERO}, label %zero
                                  i32 {NOT_ZERO}, label %not.zero
                                  i32 {NOT_NEGATIVE}, label %not.negative ]
add:
  %sum.pair = call {{ i64, i1 }} @llvm.sadd.with.overflow.i64(i64 %x, i64 %y)
  %sum = extractvalue {{ i64, i1 }} %sum.pair, 0
  %sum.wide = extractvalue {{ i64, i1 }} %sum.pair, 1
  br i1 %sum.wide, label %wide, label %write
multiply:
  %product.pair = call {{ i64, i1 }} @llvm.smul.with.overflow.i64(i64 %x, i64 %y)
  %product = extractvalue {{ i64, i1 }} %product.pair, 0
  %product.wide = extractvalue {{ i64, i1 }} %product.pair, 1
  br i1 %product.wide, label %wide, label %write
divide:
  %positive = icmp sgt i64 %y, 0
  br i1 %positive, label %divided, label %wide
divided:
  %near = sdiv i64 %x, %y
  %near.whole = mul i64 %near, %y
  %near.rest = sub i64 %x, %near.whole
  %is.above = icmp slt i64 %near.rest, 0
  %one = zext i1 %is.above to i64
  %quotient = sub i64 %near, %one
  %more = select i1 %is.above, i64 %y, i64 0
  %rest = add i64 %near.rest, %more
  %is.rest = icmp eq i32 %code, {REMAINDER}
  %divided.to = select i1 %is.rest, i64 %rest, i64 %quotient
  br label %write
least:
  %smaller = call i64 @llvm.smin.i64(i64 %x, i64 %y)
  br label %write
most:
  %larger = call i64 @llvm.smax.i64(i64 %x, i64 %y)
  br label %write
write:
  %made = phi i64 [ %sum, %add ], [ %product, %multiply ], [ %divided.to, %divided ],
                  [ %smaller, %least ], [ %larger, %most ]
  %target.at = getelementptr i32, ptr %row, i64 1
  %target.number = load i32, ptr %target.at, align 4
  %target = getelementptr i64, ptr %registers, i32 %target.number
  store i64 %made, ptr %target, align 8
  br label %fetch
zero:
  %is.zero = icmp eq i64 %x, 0
  br i1 %is.zero, label %asked, label %no
not.zero:
  %is.not.zero = icmp ne i64 %x, 0
  br i1 %is.not.zero, label %asked, label %no
not.negative:
  %is.not.negative = icmp sge i64 %x, 0
  br i1 %is.not.negative, label %asked, label %no
asked:
  br label %fetch
}}
"""
