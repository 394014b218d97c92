"""Saving and loading: safetensors files with a manifest, written atomically, never executed."""

from __future__ import annotations

from treadle.serialization.checkpoint import load, save
from treadle.serialization.program import Program, load_program, save_program

__all__ = ["Program", "load", "load_program", "save", "save_program"]
