"""The door to code generation, which is opened when something has to be lowered."""

from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.lowering import LOWERINGS

__all__ = ["LOWERINGS", "lower", "symbol_of"]
