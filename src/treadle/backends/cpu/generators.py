"""The door to code generation, which `compiler.py` opens when something has to be lowered.

Warm starts, whose programs are stored, need none of it, and it takes longer to import than all
else they do.
"""

from treadle.backends.codegen.kernel_ir import Kernel
from treadle.backends.codegen.llvm_text import module_text, symbol_of
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.lowering import LOWERINGS
from treadle.backends.codegen.text import kernel_text

__all__ = ["LOWERINGS", "Kernel", "kernel_text", "lower", "module_text", "symbol_of"]
