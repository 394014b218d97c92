"""Code generation: ops become kernels of one small language, which renderers print.

Read `kernel_ir.py` first, then `lower.py`, which finds the generator of an op.
"""
