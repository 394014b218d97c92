"""The alias as `import megengine` finds it in a process that a program starts, once installed."""

from __future__ import annotations

import sys

from treadle.interop.megengine.alias import install

# The import system takes what stands in `sys.modules` when this is done: Treadle itself.
del sys.modules[__name__]
install()
