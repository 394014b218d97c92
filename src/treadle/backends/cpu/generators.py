"""The door to code generation, which `compiler.py` opens when something has to be lowered.

Warm starts, whose programs are stored, need none of it, and it takes longer to import than all
else they do.
"""

from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.llvm import module_text, symbol_of
from treadle.backends.codegen.kernel.text import kernel_text
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.lowering import LOWERINGS

__all__ = ["LOWERINGS", "KernelModule", "kernel_text", "lower", "module_text", "symbol_of"]
