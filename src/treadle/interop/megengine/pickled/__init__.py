"""Traced modules that MegEngine pickled, of 1.6 and later: `mge.save(traced, "model.tm")`.

Nothing in a file is imported or called. Its objects are read as records, a name and a state each;
layers, functions, methods and definitions of ops that records name are looked up among Treadle's
and those that the program has registered, and all else is refused.
"""

from treadle.interop.megengine.pickled.objects import Objects

__all__ = ["Objects"]
