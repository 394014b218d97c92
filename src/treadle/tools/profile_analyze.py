"""`profile_analyze DUMP`: tables of what `trace.get_profile` measured or `Profiler` wrote."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from treadle.utils.profile_analyzer import (
    TITLES,
    OprProfRst,
    ProfileAnalyzer,
    Record,
    TimeFuncHelper,
    peaks,
    summed,
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser("profile_analyze", description=__doc__)
    made.add_argument("dump", help="a JSON file of what get_profile returned, or a timeline")
    made.add_argument("-t", "--top", type=int, default=3, help="rows, 3; 0 for all")
    made.add_argument("--type", help="operators of this type (a regular expression)")
    made.add_argument("--opr-name", help="operators of this name (a regular expression)")
    made.add_argument("--aggregate-by", choices=("type", "name"), help="sum rows that share it")
    made.add_argument("--aggregate", choices=("sum", "mean", "max", "min", "count"))
    made.add_argument("--order-by", default="time", help="a column, 'time'; +column is ascending")
    made.add_argument("--top-end-key", choices=("end", "kern"), default="end")
    made.add_argument("--min-time", type=float, default=0.0, help="seconds")
    made.add_argument("--max-time", type=float, default=float("inf"), help="seconds")
    made.add_argument("--show-host", action="store_true", help="times on the host")
    made.add_argument("--dump-only-opr", action="store_true", help="names only")
    made.add_argument("--wiki", action="store_true", help="as a Markdown table")
    for name in ("input-dtype", "print-only"):
        made.add_argument(f"--{name}", help="for MegEngine's command line; not used")
    for name in ("copy-time", "confluence"):
        made.add_argument(f"--{name}", action="store_true", help="not used")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    args = parser().parse_args(arguments)
    try:
        content = json.loads(Path(args.dump).read_text(encoding="utf-8"))
        if isinstance(content, dict) and "traceEvents" in content:
            return _timeline(content, args)
        rows = _selected(ProfileAnalyzer(content), args)
    except (OSError, ValueError, TypeError) as error:
        print(f"profile_analyze: {error}", file=sys.stderr)
        return 1
    if args.dump_only_opr:
        print("\n".join(str(r.info.get("name", _label(r))) for r in rows))
    elif args.wiki:
        print("| operator | ms | GFLOP/s | GB/s |\n|---|---|---|---|")
        for cells in map(_cells, rows):
            print(f"| {' | '.join(cells)} |")
    else:
        table = Table(title=args.dump)
        for title in ("operator", "ms", "GFLOP/s", "GB/s"):
            table.add_column(title, justify="left" if title == "operator" else "right")
        for cells in map(_cells, rows):
            table.add_row(*cells)
        Console().print(table)
    return 0


def _timeline(content: dict[str, Any], args: argparse.Namespace) -> int:
    """A `Profiler`'s timeline: times by op, program and compilation stage, and peaks of memory."""
    rows = summed(content["traceEvents"], args.opr_name or args.type or "")
    rows = [r for r in rows if args.min_time <= r.total / 1e6 <= args.max_time]
    rows = rows[: args.top or None]
    if args.dump_only_opr:
        print("\n".join(row.name for row in rows))
        return 0
    table = Table(title=args.dump)
    for title in TITLES:
        table.add_column(title, justify="left" if title == "op" else "right")
    for row in rows:
        table.add_row(*row.cells)
    Console().print(table)
    for place, nbytes in peaks(content).items():
        print(f"memory peak of {place}: {nbytes} bytes")
    return 0


def _selected(analyzer: ProfileAnalyzer, args: argparse.Namespace) -> list[Record]:
    time = TimeFuncHelper.eval_time_func(
        "host" if args.show_host else "device", args.top_end_key, sum
    )

    def wanted(opr: OprProfRst) -> bool:
        seconds = time(opr)
        fits = seconds is not None and args.min_time <= seconds <= args.max_time
        named = all(
            re.search(pattern, str(opr.opr_info.get(key, "")))
            for key, pattern in (("type", args.type), ("name", args.opr_name))
            if pattern
        )
        return fits and named

    together = args.aggregate or ("sum" if args.aggregate_by else None)
    return analyzer.select(time, wanted, together, args.aggregate_by, args.order_by, args.top)


def _label(record: Record) -> str:
    return ", ".join(f"{v}" for k, v in record.info.items() if k in ("name", "type", "all"))


def _cells(record: Record) -> tuple[str, ...]:
    return (
        _label(record),
        f"{1e3 * record.time:.4g}",
        _scaled(record.flops),
        _scaled(record.bandwidth),
    )


def _scaled(rate: Any) -> str:
    return f"{rate / 1e9:.4g}" if isinstance(rate, int | float) else str(rate)


if __name__ == "__main__":
    sys.exit(main())
