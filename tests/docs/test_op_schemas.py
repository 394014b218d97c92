"""docs/op-schemas.json: every op, with what it takes and gives."""

from __future__ import annotations

import json

from tools import op_schemas
from treadle.ops import REGISTRY
from treadle.ops.movement import Concat

LISTED = {entry["name"]: entry for entry in json.loads(op_schemas.PAGE.read_text("utf-8"))["ops"]}


def test_every_op_is_listed_with_its_operands() -> None:
    own = {n: c for n, c in REGISTRY.items() if c.__module__.startswith("treadle.")}
    assert LISTED.keys() == own.keys()
    for name, entry in LISTED.items():
        assert entry["operands"] == list(own[name].operands)
        assert [a["name"] for a in entry["attributes"]] == list(own[name]._fields)


def test_defaults_types_and_mappings_are_listed() -> None:
    assert LISTED["concat"]["attributes"] == [{"name": "axis", "type": "int"}]
    assert LISTED["concat"]["onnx"] == Concat.onnx.op_type == "Concat"
    assert {"name": "full_matrices", "type": "bool", "default": "False"} in (
        LISTED["svd"]["attributes"]
    )
    assert LISTED["argmax"]["gradient"] is False and LISTED["exp"]["gradient"] is True
    assert LISTED["svd"]["results"] == 3 and not any(e["mutates"] for e in LISTED.values())
