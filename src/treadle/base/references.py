"""Counts of the references to an object, alike on every version of Python."""

from __future__ import annotations

import sys


def references(one: tuple[object]) -> int:
    """Return the number of references that the tuple's one object has.

    The tuple's is one of them, and counting takes one more. It is done by native code, since how
    many references a call in Python holds is up to its version: from 3.14 on arguments may be lent.
    """
    (count,) = map(sys.getrefcount, one)
    return count
