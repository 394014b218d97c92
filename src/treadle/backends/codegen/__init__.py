"""Code generation: ops become kernels of one small language, which renderers print.

Read `kernel/ir.py` and `kernel/builder.py` first, then `lower.py`, which finds the generator of an
op. Rooms: `loops`, `contraction`, `attention` and `irregular` hold the generators, `scalars` what
they do to one element, `kernel` the language.
"""
