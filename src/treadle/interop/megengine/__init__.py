"""Programs written for MegEngine: make `import megengine` resolve to Treadle.

Off unless asked for, either for one run

    python -m treadle.interop.megengine script.py [arguments]
    python -m treadle.interop.megengine -m pytest [arguments]

or by a program that calls `install()` before its first `import megengine`. Models that MegEngine
dumped, `.mge` files of its own runtime, are read by `read_model`, and by everything that reads
Treadle's model files once this is imported.
"""

from treadle.engine.package import Foreign, is_megengines, read_also
from treadle.interop.megengine.alias import install, uninstall
from treadle.interop.megengine.dumped import DumpedModel, read_model
from treadle.interop.megengine.dumped.program import models_in

read_also(Foreign(is_megengines, models_in))

__all__ = ["DumpedModel", "install", "read_model", "uninstall"]
