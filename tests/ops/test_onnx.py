"""The ONNX operators that declarations name exist and have the attributes they are given."""

from typing import Any

import pytest
from tests.ops import harness

from treadle.ops import REGISTRY
from treadle.ops.op import Onnx, Op

pytestmark = pytest.mark.onnx


def test_every_mapping_fits_its_schema() -> None:
    onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
    problems = []
    for name in harness.OPS:
        cls = REGISTRY[name]
        if cls.onnx is not None:
            schema = onnx.defs.get_schema(cls.onnx.op_type, cls.onnx.since)
            problems += [f"{name}: {p}" for p in mismatches(cls, cls.onnx, schema)]
    assert not problems, "\n".join(problems)


def mismatches(cls: type[Op], entry: Onnx, schema: Any) -> list[str]:
    """Why a declaration does not map one to one to the operator it names."""
    found = []
    if schema.since_version != entry.since:
        found.append(f"since={entry.since}, but this form is of opset {schema.since_version}")
    given = {theirs for _, theirs in entry.attributes}
    if not given <= set(schema.attributes):
        found.append(f"no attributes {sorted(given - set(schema.attributes))}")
    required = {name for name, a in schema.attributes.items() if a.required}
    if not required <= given:
        found.append(f"the required attributes {sorted(required - given)} are not given")
    variadic = any(o.startswith("*") for o in cls.operands)
    if not variadic and not schema.min_input <= len(cls.operands) <= schema.max_input:
        found.append(f"takes {schema.min_input} to {schema.max_input} inputs")
    return found
