"""`accuracy_shake_var_tree FILE`: where results of two runs begin to differ.

The file is a JSON list of objects with "name", "inputs" (names) and "difference"; those come from
`compare_binary_iodump` or from one's own comparison. Printed is the tree of values that differ more
than their inputs do, which is where to look for the cause.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.tree import Tree


def roots(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Values that differ although none of their inputs does."""
    by_name = {v["name"]: v for v in values}
    differing = [v for v in values if v["difference"] > 0]
    return [
        v["name"]
        for v in differing
        if not any(by_name[i]["difference"] > 0 for i in v["inputs"] if i in by_name)
    ]


def tree_of(values: Sequence[Mapping[str, Any]]) -> Tree:
    """Return a tree from each value that differs first to those that read it and differ as well."""
    by_name = {v["name"]: v for v in values}
    top = Tree("values that differ")
    shown: set[str] = set()
    stack = [(top, name) for name in reversed(roots(values))]
    while stack:
        branch, name = stack.pop()
        mark = " (above)" if name in shown else ""
        inner = branch.add(f"{name}: {by_name[name]['difference']:.3g}{mark}")
        if name in shown:
            continue
        shown.add(name)
        readers = [v["name"] for v in values if name in v["inputs"] and v["difference"] > 0]
        stack += [(inner, reader) for reader in reversed(readers)]
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser("accuracy_shake_var_tree", description=__doc__)
    parser.add_argument("filename")
    args = parser.parse_args(arguments)
    try:
        values = json.loads(Path(args.filename).read_text(encoding="utf-8"))
        Console().print(tree_of(values))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"accuracy_shake_var_tree: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
