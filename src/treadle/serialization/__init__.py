"""Saving and loading: safetensors files with a manifest, written atomically, never executed."""

from __future__ import annotations

from treadle.serialization.checkpoint import load, save

__all__ = ["load", "save"]
