"""`draw_graph -i MODEL -o PICTURE`: a model file as SVG, HTML or DOT.

Both the graph as it was dumped and the program that became of it are drawn, side by side.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from treadle.base.errors import TreadleError
from treadle.engine.pipeline import Stages
from treadle.inspect import Inspected
from treadle.interop.files import read_foreign_models
from treadle.utils.network import Network


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser("draw_graph", description=__doc__)
    parser.add_argument("-i", "--input", required=True, help="a model file")
    parser.add_argument("-o", "--output", required=True, help="the picture's path")
    parser.add_argument("-d", "--dest-nodes", nargs="*", help="variables to draw up to, by name")
    parser.add_argument("--end-vars-from", nargs="*", help="the same")
    parser.add_argument("--output-format", choices=("svg", "html", "dot"))
    for name in ("profile", "opr-attr", "depth"):
        parser.add_argument(f"--{name}", help="for MegEngine's command line; not used")
    parser.add_argument("--prune-dangling-vars", action="store_true", help="done anyway")
    args = parser.parse_args(arguments)
    read_foreign_models()
    path = Path(args.output)
    if args.output_format:
        path = path.with_suffix(f".{args.output_format}")
    try:
        network = Network.load(args.input, args.dest_nodes or args.end_vars_from)
        Inspected(Stages(network.graph())).diagram(path)
    except (TreadleError, OSError, ValueError) as error:
        print(f"draw_graph: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
