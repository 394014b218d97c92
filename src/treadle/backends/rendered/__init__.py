"""Compiler and engine of any `Renderer`.

Where to read: `backend.py` (what a backend derives from), `compiler.py` (what the engine sees),
`library.py` (sources to binaries, in memory and on disk), `executable.py` (how programs run),
`eager.py` (single ops). Code generation is imported where something must be lowered.
"""
