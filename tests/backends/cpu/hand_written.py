"""Kernels written by hand in LLVM's text form, and programs of them."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from treadle.backends.cpu.encoding import encode
from treadle.backends.cpu.executable import NativeExecutable
from treadle.backends.cpu.native import toolchain
from treadle.backends.program import Program, Step

NAMES = ("hand_nothing", "hand_affine", "hand_sum", "hand_set", "hand_spin", "hand_who")
_TEXT = """
define void @hand_nothing(ptr %args, i64 %lo, i64 %hi) {
  ret void
}

; p[i] = p[i] * k + i for the items
define void @hand_affine(ptr %args, i64 %lo, i64 %hi) {
entry:
  %p = load ptr, ptr %args
  %k.at = getelementptr i64, ptr %args, i64 1
  %k = load i64, ptr %k.at
  br label %turn
turn:
  %i = phi i64 [ %lo, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %at = getelementptr i64, ptr %p, i64 %i
  %old = load i64, ptr %at
  %scaled = mul i64 %old, %k
  %new = add i64 %scaled, %i
  store i64 %new, ptr %at
  %next = add i64 %i, 1
  br label %turn
done:
  ret void
}

; partial[i] = sum of eight floats from x + 8 i on, in order: what chunks of a reduction do
define void @hand_sum(ptr %args, i64 %lo, i64 %hi) {
entry:
  %x = load ptr, ptr %args
  %partial.at = getelementptr ptr, ptr %args, i64 1
  %partial = load ptr, ptr %partial.at
  br label %turn
turn:
  %i = phi i64 [ %lo, %entry ], [ %next, %finish ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %first = shl i64 %i, 3
  br label %add
add:
  %k = phi i64 [ 0, %body ], [ %k.next, %add ]
  %sum = phi float [ 0.0, %body ], [ %sum.next, %add ]
  %place = add i64 %first, %k
  %at = getelementptr float, ptr %x, i64 %place
  %value = load float, ptr %at
  %sum.next = fadd float %sum, %value
  %k.next = add i64 %k, 1
  %again = icmp slt i64 %k.next, 8
  br i1 %again, label %add, label %finish
finish:
  %to = getelementptr float, ptr %partial, i64 %i
  store float %sum.next, ptr %to
  %next = add i64 %i, 1
  br label %turn
done:
  ret void
}

; p[0] = p[0] + 1; flag = p[0] >= limit
define void @hand_set(ptr %args, i64 %lo, i64 %hi) {
  %p = load ptr, ptr %args
  %flag.at = getelementptr ptr, ptr %args, i64 1
  %flag = load ptr, ptr %flag.at
  %limit.at = getelementptr i64, ptr %args, i64 2
  %limit = load i64, ptr %limit.at
  %old = load i64, ptr %p
  %new = add i64 %old, 1
  store i64 %new, ptr %p
  %reached = icmp sge i64 %new, %limit
  %byte = zext i1 %reached to i8
  store i8 %byte, ptr %flag
  ret void
}

; who[i] = the thread that did item i, after counting down from n
declare i64 @pthread_self()
define void @hand_who(ptr %args, i64 %lo, i64 %hi) {
entry:
  %who = load ptr, ptr %args
  %n.at = getelementptr i64, ptr %args, i64 1
  br label %turn
turn:
  %i = phi i64 [ %lo, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %next = add i64 %i, 1
  call void @hand_spin(ptr %n.at, i64 %i, i64 %next)
  %self = call i64 @pthread_self()
  %at = getelementptr i64, ptr %who, i64 %i
  store i64 %self, ptr %at
  br label %turn
done:
  ret void
}

; count down from n for every item: takes a while
define void @hand_spin(ptr %args, i64 %lo, i64 %hi) {
entry:
  %n = load i64, ptr %args
  br label %turn
turn:
  %i = phi i64 [ %lo, %entry ], [ %next, %finish ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %k = phi i64 [ %n, %turn ], [ %k.next, %body ]
  %k.next = sub i64 %k, 1
  fence seq_cst
  %again = icmp sgt i64 %k.next, 0
  br i1 %again, label %body, label %finish
finish:
  %next = add i64 %i, 1
  br label %turn
done:
  ret void
}
"""


def executable(steps: Sequence[Step], bases: int) -> NativeExecutable:
    """A program whose kernels are named by the functions above."""
    # Symbols stand for the text in the cache, so they change with it.
    version = hashlib.sha256(_TEXT.encode()).hexdigest()[:8]
    symbols = {name: f"{name}_{version}" for name in NAMES}
    text = re.sub(r"@(hand_\w+)", rf"@\1_{version}", _TEXT)
    library = toolchain().load_module(list(symbols.values()), text)
    return NativeExecutable(encode(Program(tuple(steps), bases), symbols.__getitem__), [library])


def addresses(*arrays: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    return np.array([a.ctypes.data for a in arrays], np.int64)
