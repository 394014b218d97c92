"""`python -m treadle.hub name-weights FILE...`: names weights by their hash, to publish them."""

from __future__ import annotations

import argparse

from treadle.hub.weights import name_with_digest


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m treadle.hub", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    rename = commands.add_parser("name-weights", help="put the hash of files into their names")
    rename.add_argument("files", nargs="+", metavar="FILE")
    for file in parser.parse_args().files:
        print(name_with_digest(file))


if __name__ == "__main__":
    main()
