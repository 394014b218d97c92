"""`graph_info_analyze -i MODEL -o DIR`: operators, their shapes and how memory is planned."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from treadle.base.errors import TreadleError
from treadle.engine.package.models import read_models
from treadle.engine.pipeline import Stages
from treadle.graph.json_text import graph_json
from treadle.inspect import Inspected
from treadle.interop.files import read_foreign_models


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser("graph_info_analyze", description=__doc__)
    parser.add_argument("-i", "--input", required=True, help="a model file")
    parser.add_argument("-o", "--output", required=True, help="a directory, which is made")
    args = parser.parse_args(arguments)
    read_foreign_models()
    try:
        model = read_models(args.input)[0]
        program = Inspected(Stages(model.graph))
        folder = Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
        graph = json.loads(graph_json(model.graph))
        (folder / "graph.json").write_text(json.dumps(graph, indent=1), encoding="utf-8")
        explained = json.dumps(program.explain().data(), indent=1)
        (folder / "program.json").write_text(explained, encoding="utf-8")
        report = program.explained(full=True)
        (folder / "report.txt").write_text(report, encoding="utf-8")
        program.diagram(folder / "graph.svg")
    except (TreadleError, OSError) as error:
        print(f"graph_info_analyze: {error}", file=sys.stderr)
        return 1
    print(f"{len(model.graph.nodes)} operators; see {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
