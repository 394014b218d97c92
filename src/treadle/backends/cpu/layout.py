"""Layouts that the native runtime and the Python around it agree on.

All numbers are bytes, or 64-bit words where they say so.
"""

# -- layout of a pool, in bytes; what different threads write lies on lines of its own ----------

EPOCH, SLEEPERS, BUSY, GATE = 0, 128, 256, 384
KERNEL, ARGUMENTS = 512, 520
THREADS, SPINS, STOP, LIVE = 640, 648, 656, 664
SHARES, SHARE_BYTES = 768, 128
MOST_THREADS = 256
POOL_BYTES = SHARES + SHARE_BYTES * MOST_THREADS

# -- words of a program ------------------------------------------------------------------------

RUN, JUMP, HOST, END, PART, TOGETHER, SUMS = 0, 1, 2, 3, 4, 5, 6
"""Codes; a step is its code, its number, and then
for RUN: kernel, number of arguments, items, whether serial, 0, whether it is the `FIRST` and the
`LAST` of its step, and (base or -1, offset) pairs;
for JUMP: word to go on at, base (or -1 for always) and offset of the condition;
for SUMS: how many triples of bases follow: the first becomes the sum of the others.
A merged launch is a RUN per run where it is serial; else a PART per run and then TOGETHER, which
is as a RUN without arguments whose items are units. A PART is as a RUN, with the items of a unit in
place of the flag, the word of the scratch memory at which its table of arguments begins, and the
number of the unit after its last.
Bits of the code say which of a RUN's numbers are in the table of bases, and the word says where."""
KIND, OPEN_ITEMS, OPEN_END = 7, 8, 16
"""The code itself, and bits beside it: for items, for units so far."""
RUN_WORDS, JUMP_WORDS, HOST_WORDS, SUMS_WORDS = 8, 5, 2, 3
FIRST, LAST = 1, 2

PART_KERNEL, PART_END, PART_GRAIN, PART_ITEMS, PART_LENGTH, PART_WORDS = 0, 1, 2, 3, 4, 5
"""Words of a part in scratch memory, before its arguments. Parts follow one another; the length
is that of the whole part."""

ENDED, NO_POOL, NOT_DENSE, CHANGED = -1, -2, -3, -4
"""Codes returned: the program ended; the pool must be started first; something is not a row-major
array; what is watched is not as it was."""
