"""Programs written for MegEngine: make `import megengine` resolve to Treadle.

Off unless asked for, either for one run

    python -m treadle.interop.megengine script.py [arguments]
    python -m treadle.interop.megengine -m pytest [arguments]

or by a program that calls `install()` before its first `import megengine`.
"""

from treadle.interop.megengine.alias import install, uninstall

__all__ = ["install", "uninstall"]
