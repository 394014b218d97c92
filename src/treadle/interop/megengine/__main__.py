"""`python -m treadle.interop.megengine script.py`: run a MegEngine program on Treadle."""

from __future__ import annotations

import runpy
import sys

from treadle.interop.megengine.alias import install


def main() -> None:
    """Run the script named on the command line, with the rest as its arguments."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m treadle.interop.megengine script.py [arguments]")
    install()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, "")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
