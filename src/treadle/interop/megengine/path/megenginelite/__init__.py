"""`treadle.lite`, for `import megenginelite` in processes that a program starts."""

from __future__ import annotations

import sys

from treadle.interop.megengine.alias import install

# The import system takes what stands in `sys.modules` when this is done.
del sys.modules[__name__]
install()
__import__(__name__)
