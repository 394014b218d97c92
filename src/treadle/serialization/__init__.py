"""Saving and loading: safetensors files with a manifest, written atomically, never executed."""

from __future__ import annotations

from treadle.base.saved_objects import allow
from treadle.serialization.checkpoint import dmap, load, save
from treadle.serialization.directories import WeightDirectory, load_directory
from treadle.serialization.program import Program, load_program, save_program
from treadle.serialization.sharded import Part, load_sharded, save_sharded

__all__ = [
    "Part",
    "Program",
    "WeightDirectory",
    "allow",
    "dmap",
    "load",
    "load_directory",
    "load_program",
    "load_sharded",
    "save",
    "save_program",
    "save_sharded",
]
