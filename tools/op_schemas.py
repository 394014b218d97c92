"""The schemas of all ops for programs to read: `python -m tools.op_schemas` writes them as JSON.

docs/op-schemas.json lists, per op, its operands, attributes with defaults, number of results,
element types, whether it has a gradient, and its ONNX counterpart. `--check` fails where the
committed file is stale.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from tools.generated import DOCS, write_or_check
from treadle.base.version import VERSION
from treadle.ops import REGISTRY
from treadle.ops.op import Op

PAGE = DOCS / "op-schemas.json"


def schema(cls: type[Op]) -> dict[str, Any]:
    """What an op takes and gives, as JSON values."""
    return {
        "name": cls.name,
        "operands": list(cls.operands),
        "results": cls.n_outputs if cls.n_outputs >= 0 else "by attributes",
        "attributes": [_attribute(cls, name) for name in cls._fields],
        "dtypes": [dtype.name for dtype in cls.dtypes],
        "gradient": not cls.no_gradient,
        "onnx": cls.onnx.op_type if cls.onnx is not None else None,
        "mutates": False,
    }


def _attribute(cls: type[Op], name: str) -> dict[str, Any]:
    kinds = {
        field: kind
        for base in reversed(cls.__mro__)
        for field, kind in inspect.get_annotations(base).items()
    }
    given = {"name": name, "type": str(kinds[name])}
    if name in {field for base in cls.__mro__ for field in vars(base)}:
        given["default"] = repr(getattr(cls, name))
    return given


def page() -> str:
    """The file's text."""
    own = [c for _, c in sorted(REGISTRY.items()) if c.__module__.startswith("treadle.")]
    ops = [json.dumps(schema(cls), ensure_ascii=False) for cls in own]
    return f'{{"version": "{VERSION}", "ops": [\n' + ",\n".join(ops) + "\n]}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or compare with it."""
    return write_or_check(PAGE, page(), "tools.op_schemas", arguments)


if __name__ == "__main__":
    sys.exit(main())
