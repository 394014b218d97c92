"""Every op, declared once.

Importing this package registers all of them in `REGISTRY`.
"""

from treadle.ops import elementwise, movement, reduce
from treadle.ops.op import REGISTRY, Op

__all__ = ["REGISTRY", "Op", "elementwise", "movement", "reduce"]
