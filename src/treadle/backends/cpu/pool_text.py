"""The thread pool, in LLVM's text form.

A caller posts one job at a time: a kernel, its arguments, and every participant's share of the
items. The posting thread is participant 0 and never waits for a worker to arrive: whoever has
emptied its own share takes from the others', half of what is left at a time, so that a thread that
sleeps or was preempted delays nobody, while threads that are awake keep to the same items from job
to job (and find them in their caches). The gate counts the workers inside; the caller closes it and
waits until those inside have left. A caller that finds the pool busy (because another thread runs
a program) runs its job alone. Workers spin for a while, then sleep on the epoch, by futex or by
Windows' `WaitOnAddress`; where there is neither they sleep in short slices, which costs a slice at
the first job after a pause.
"""

from __future__ import annotations

import platform
import sys

from treadle.backends.cpu.layout import (
    ARGUMENTS,
    BUSY,
    GATE,
    KERNEL,
    LIVE,
    MOST_THREADS,
    SHARE_BYTES,
    SHARES,
    SLEEPERS,
    SPINS,
    STOP,
    THREADS,
)

_OPEN = 1 << 20
"""Bit of the gate beside the count of workers inside: more may enter."""
_JOIN_SPINS = 2000
_SLICE_MICROSECONDS = 100
SYSTEM = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
"""The system that this runs on, as targets spell it."""

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98}
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


def pool_text(machine: str = "", system: str = "") -> str:
    """The part of the module for a machine: `@launch`, `@nanoseconds`, `@treadle_worker`.

    `machine` is its architecture as `platform` spells it, and `system` is "linux", "macos" or
    "windows"; "" for those that this runs on.
    """
    machine = machine or platform.machine()
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if machine == "wasm32":
        return _ALONE
    system = system or SYSTEM
    declare_pause, pause = _PAUSE.get(machine, ("", "fence seq_cst"))
    number = _FUTEX_NUMBER.get(machine) if system == "linux" else None
    if system == "windows":
        around = _WINDOWS
    else:
        around = (_SLICES if number is None else _futex(number)) + _posix(system)
    return f"{declare_pause}\n{around}\n{_POOL.replace('PAUSE', pause)}"


def _futex(number: int) -> str:
    return f"""
declare i64 @syscall(i64, ...)
define internal void @wait_for_change(ptr %word, i32 %known) {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 {_WAIT_PRIVATE},
    i32 %known, ptr null)
  ret void
}}
define internal void @wake(ptr %word, i32 %most) {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 {_WAKE_PRIVATE}, i32 %most)
  ret void
}}
"""


def _posix(system: str) -> str:
    return f"""
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
define internal void @yield() {{
  %y = call i32 @sched_yield()
  ret void
}}
define internal i64 @nanoseconds() {{
  %time = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 {1 if system == "linux" else 6}, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest.at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest.at, align 8
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}}
"""


_WINDOWS = """
declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressAll(ptr)
declare i32 @SwitchToThread()
declare i32 @QueryPerformanceCounter(ptr)
declare i32 @QueryPerformanceFrequency(ptr)
define internal void @wait_for_change(ptr %word, i32 %known) {
  %seen = alloca i32, align 4
  store i32 %known, ptr %seen, align 4
  %r = call i32 @WaitOnAddress(ptr %word, ptr %seen, i64 4, i32 -1)
  ret void
}
define internal void @wake(ptr %word, i32 %most) {
  call void @WakeByAddressAll(ptr %word)
  ret void
}
define internal void @yield() {
  %y = call i32 @SwitchToThread()
  ret void
}
define internal i64 @nanoseconds() {
  %at = alloca i64, align 8
  %r = call i32 @QueryPerformanceFrequency(ptr %at)
  %frequency = load i64, ptr %at, align 8
  %s = call i32 @QueryPerformanceCounter(ptr %at)
  %count = load i64, ptr %at, align 8
  %per.second = sitofp i64 %frequency to double
  %counted = sitofp i64 %count to double
  %scaled = fmul double %counted, 1.0e9
  %time = fdiv double %scaled, %per.second
  %whole = fptosi double %time to i64
  ret i64 %whole
}
"""

_SLICES = f"""
declare i32 @usleep(i32)
define internal void @wait_for_change(ptr %word, i32 %known) {{
  %r = call i32 @usleep(i32 {_SLICE_MICROSECONDS})
  ret void
}}
define internal void @wake(ptr %word, i32 %most) {{
  ret void
}}
"""

_ALONE = """
declare i64 @llvm.umin.i64(i64, i64)
define internal void @launch(ptr %pool, ptr %kernel, ptr %args, i64 %items) {
  call void %kernel(ptr %args, i64 0, i64 %items)
  ret void
}
define internal i64 @nanoseconds() {
  ret i64 0
}
"""
"""One thread and no clock."""

_POOL = f"""
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)

define internal void @drain(ptr %share, ptr %kernel, ptr %args) {{
entry:
  %end.at = getelementptr i8, ptr %share, i64 8
  %end = load i64, ptr %end.at, align 8
  br label %look
look:
  %first = load atomic i64, ptr %share monotonic, align 8
  br label %take
take:
  %lo = phi i64 [ %first, %look ], [ %seen, %try ]
  %left = sub i64 %end, %lo
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %try, label %done
try:
  %half = lshr i64 %left, 1
  %size = call i64 @llvm.umax.i64(i64 %half, i64 1)
  %hi = add i64 %lo, %size
  %swap = cmpxchg ptr %share, i64 %lo, i64 %hi monotonic monotonic, align 8
  %seen = extractvalue {{ i64, i1 }} %swap, 0
  %won = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %won, label %run, label %take
run:
  call void %kernel(ptr %args, i64 %lo, i64 %hi)
  br label %look
done:
  ret void
}}

define internal void @participate(ptr %pool, i64 %self) {{
entry:
  %kernel.at = getelementptr i8, ptr %pool, i64 {KERNEL}
  %kernel = load ptr, ptr %kernel.at, align 8
  %args.at = getelementptr i8, ptr %pool, i64 {ARGUMENTS}
  %args = load ptr, ptr %args.at, align 8
  %threads.at = getelementptr i8, ptr %pool, i64 {THREADS}
  %threads = load i64, ptr %threads.at, align 8
  %shares = getelementptr i8, ptr %pool, i64 {SHARES}
  br label %visit
visit:
  %turn = phi i64 [ 0, %entry ], [ %turn.next, %visit ]
  %sum = add i64 %self, %turn
  %beyond = icmp uge i64 %sum, %threads
  %wrapped = sub i64 %sum, %threads
  %owner = select i1 %beyond, i64 %wrapped, i64 %sum
  %place = mul i64 %owner, {SHARE_BYTES}
  %share = getelementptr i8, ptr %shares, i64 %place
  call void @drain(ptr %share, ptr %kernel, ptr %args)
  %turn.next = add i64 %turn, 1
  %more = icmp ult i64 %turn.next, %threads
  br i1 %more, label %visit, label %done
done:
  ret void
}}

define ptr @treadle_worker(ptr %start) {{
entry:
  %pool = load ptr, ptr %start, align 8
  %self.at = getelementptr i8, ptr %start, i64 8
  %self = load i64, ptr %self.at, align 8
  %sleepers = getelementptr i8, ptr %pool, i64 {SLEEPERS}
  %gate = getelementptr i8, ptr %pool, i64 {GATE}
  %spins.at = getelementptr i8, ptr %pool, i64 {SPINS}
  %stop = getelementptr i8, ptr %pool, i64 {STOP}
  %live = getelementptr i8, ptr %pool, i64 {LIVE}
  br label %idle
idle:
  %known = phi i32 [ 0, %entry ], [ %epoch, %enter ], [ %epoch, %inside ]
  %spins = load i64, ptr %spins.at, align 8
  br label %spin
spin:
  %spun = phi i64 [ 0, %idle ], [ %spun.next, %pause ]
  %now = load atomic i32, ptr %pool acquire, align 4
  %changed = icmp ne i32 %now, %known
  br i1 %changed, label %arrive, label %pause
pause:
  PAUSE
  %spun.next = add i64 %spun, 1
  %patient = icmp ult i64 %spun.next, %spins
  br i1 %patient, label %spin, label %sleep
sleep:
  %s0 = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  call void @wait_for_change(ptr %pool, i32 %known)
  %s1 = atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  %woken = load atomic i32, ptr %pool acquire, align 4
  %real = icmp ne i32 %woken, %known
  br i1 %real, label %arrive, label %sleep
arrive:
  %epoch = phi i32 [ %now, %spin ], [ %woken, %sleep ]
  %stopping = load atomic i32, ptr %stop acquire, align 4
  %ends = icmp ne i32 %stopping, 0
  br i1 %ends, label %leave, label %knock
leave:
  %l = atomicrmw sub ptr %live, i32 1 seq_cst, align 4
  ret ptr null
knock:
  %g0 = load atomic i32, ptr %gate monotonic, align 4
  br label %enter
enter:
  %g = phi i32 [ %g0, %knock ], [ %g.seen, %push ]
  %bit = and i32 %g, {_OPEN}
  %open = icmp ne i32 %bit, 0
  br i1 %open, label %push, label %idle
push:
  %g.next = add i32 %g, 1
  %swap = cmpxchg ptr %gate, i32 %g, i32 %g.next acquire monotonic, align 4
  %g.seen = extractvalue {{ i32, i1 }} %swap, 0
  %in = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %in, label %inside, label %enter
inside:
  call void @participate(ptr %pool, i64 %self)
  %out = atomicrmw sub ptr %gate, i32 1 release, align 4
  br label %idle
}}

define void @treadle_stop(ptr %pool) {{
  %stop = getelementptr i8, ptr %pool, i64 {STOP}
  store atomic i32 1, ptr %stop release, align 4
  %e = atomicrmw add ptr %pool, i32 1 seq_cst, align 4
  call void @wake(ptr %pool, i32 {MOST_THREADS})
  ret void
}}

define internal void @launch(ptr %pool, ptr %kernel, ptr %args, i64 %items) {{
entry:
  %threads.at = getelementptr i8, ptr %pool, i64 {THREADS}
  %threads = load i64, ptr %threads.at, align 8
  %smaller = call i64 @llvm.umin.i64(i64 %threads, i64 %items)
  %alone = icmp ule i64 %smaller, 1
  br i1 %alone, label %serial, label %claim
claim:
  %busy = getelementptr i8, ptr %pool, i64 {BUSY}
  %swap = cmpxchg ptr %busy, i32 0, i32 1 acquire monotonic, align 4
  %mine = extractvalue {{ i32, i1 }} %swap, 1
  br i1 %mine, label %describe, label %serial
serial:
  call void %kernel(ptr %args, i64 0, i64 %items)
  ret void
describe:
  %kernel.at = getelementptr i8, ptr %pool, i64 {KERNEL}
  store ptr %kernel, ptr %kernel.at, align 8
  %args.at = getelementptr i8, ptr %pool, i64 {ARGUMENTS}
  store ptr %args, ptr %args.at, align 8
  %shares = getelementptr i8, ptr %pool, i64 {SHARES}
  br label %divide
divide:
  %t = phi i64 [ 0, %describe ], [ %t.next, %divide ]
  %from = phi i64 [ 0, %describe ], [ %to, %divide ]
  %t.next = add i64 %t, 1
  %product = mul i64 %items, %t.next
  %to = udiv i64 %product, %threads
  %place = mul i64 %t, {SHARE_BYTES}
  %share = getelementptr i8, ptr %shares, i64 %place
  store atomic i64 %from, ptr %share monotonic, align 8
  %end.at = getelementptr i8, ptr %share, i64 8
  store i64 %to, ptr %end.at, align 8
  %more = icmp ult i64 %t.next, %threads
  br i1 %more, label %divide, label %post
post:
  %gate = getelementptr i8, ptr %pool, i64 {GATE}
  store atomic i32 {_OPEN}, ptr %gate release, align 4
  %old.epoch = atomicrmw add ptr %pool, i32 1 seq_cst, align 4
  %sleepers.at = getelementptr i8, ptr %pool, i64 {SLEEPERS}
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %call, label %work
call:
  %wanted = sub i64 %smaller, 1
  %most = trunc i64 %wanted to i32
  call void @wake(ptr %pool, i32 %most)
  br label %work
work:
  call void @participate(ptr %pool, i64 0)
  %before = atomicrmw and ptr %gate, i32 {_OPEN - 1} acquire, align 4
  br label %join
join:
  %spun = phi i64 [ 0, %work ], [ %spun.next, %wait ], [ %spun.next, %yield ]
  %inside = load atomic i32, ptr %gate acquire, align 4
  %empty = icmp eq i32 %inside, 0
  br i1 %empty, label %finish, label %wait.more
wait.more:
  %spun.next = add i64 %spun, 1
  %patient = icmp ult i64 %spun, {_JOIN_SPINS}
  br i1 %patient, label %wait, label %yield
wait:
  PAUSE
  br label %join
yield:
  call void @yield()
  br label %join
finish:
  store atomic i32 0, ptr %busy release, align 4
  ret void
}}
"""
