"""The kit on the simulated backend: `python -m tests.sim [options of treadle-backend-test]`."""

import sys
import tempfile
from pathlib import Path

from tests.backends.plugins import Plugins

from treadle.conformance import cli


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        source = "from tests.sim.backend import SimWithSegments\nbackend = SimWithSegments()\n"
        Plugins(Path(folder)).write("sim", source)
        return cli.main(["sim", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
