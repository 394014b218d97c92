"""`profiler [-o DIR] SCRIPT ARGS`: run a script, or `-m MODULE`, under a `Profiler`."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from treadle.utils.profiler import FORMATS, MERGED, Profiler, merge_trace_events


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status.

    Raises:
        SystemExit: misuse, or the end of a script that ends by itself.
    """
    parser = argparse.ArgumentParser("profiler", description=__doc__)
    parser.add_argument("-m", "--module", help="run a module in place of a script")
    parser.add_argument("-o", "--output", default="profile", help="a directory, 'profile'")
    parser.add_argument("-f", "--format", action="append", choices=FORMATS)
    parser.add_argument("--merge_trace_events", action="store_true", help="merge timelines and end")
    parser.add_argument("--clean", action="store_true", help="remove old timelines first")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="a script and its arguments")
    args = parser.parse_args(arguments)
    folder = Path(args.output)
    if args.clean and folder.is_dir():
        for old in [p for name in FORMATS for p in folder.glob(f"*.{name}")]:
            old.unlink()
    if args.merge_trace_events:
        try:
            merge_trace_events(folder)
        except (OSError, ValueError) as error:
            print(f"profiler: {error}", file=sys.stderr)
            return 1
        print(folder / MERGED)
        return 0
    rest = args.script[1:] if args.script[:1] == ["--"] else args.script
    if not args.module and not rest:
        parser.error("give a script, or -m MODULE")
    before, sys.argv = sys.argv, [args.module, *rest] if args.module else rest
    try:
        with Profiler(folder, formats=args.format or list(FORMATS[:1])):
            if args.module:
                runpy.run_module(args.module, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(rest[0]).resolve().parent))
                runpy.run_path(rest[0], run_name="__main__")
    finally:
        sys.argv = before
    return 0


if __name__ == "__main__":
    sys.exit(main())
