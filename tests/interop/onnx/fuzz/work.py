"""The worker: makes models one after another, runs them, and says so line by line."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tests.interop.onnx.fuzz import rarer, recurring, structure  # noqa: F401  (register recipes)
from tests.interop.onnx.fuzz.growing import Growing
from tests.interop.onnx.fuzz.judging import judged
from tests.interop.onnx.fuzz.recipes import RECIPES, drawn

import treadle as mge

OPSETS = (15, 18, 21, 21, 23)
FOUND = Path("build") / "fuzz-onnx"
BATCH = 400
"""Models of one process: then a new one begins, without what the last one kept."""


def run(chosen: argparse.Namespace) -> int:
    """Run models from a number on, or one of them, whose text is printed."""
    warnings.simplefilter("ignore")
    mge.set_default_device("cpux")
    if chosen.only is not None:
        grown = grow(chosen.only, chosen.operators, chosen.nnsmith)
        print(onnx.printer.to_text(grown.model()))
        for one in judge(grown):
            print(one.key, one.detail)
        return 0
    for number in range(chosen.worker, chosen.worker + BATCH):
        tell(model=number, at="make")
        grown = grow(number, chosen.operators, chosen.nnsmith)
        tell(model=number, at="run")
        found = [(f.key, f.detail) for f in judge(grown)]
        if found:
            keep(grown, number)
        names = sorted({f"{n.domain}.{n.op_type}".lstrip(".") for n in grown.nodes})
        tell(model=number, at="done", found=found, operators=names)
    return 0


def keep(grown: Growing, number: int) -> None:
    """Write a model and its inputs to a file: NNSmith's solver gives others when time is short."""
    FOUND.mkdir(parents=True, exist_ok=True)
    model = grown.model()
    onnx.save(model, FOUND / f"{number}.onnx")
    np.savez(FOUND / f"{number}.npz", **{i.name: grown.values[i.name] for i in model.graph.input})


def tell(**line: Any) -> None:
    """One line for the process that reads."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def grow(number: int, operators: list[str] | None, smith: float = 0.0) -> Growing:
    """The model of a number; every so many are NNSmith's."""
    if random.Random(-number).random() < smith and not operators:
        made = importlib.import_module("tests.interop.onnx.fuzz.smith").grown(number)
        if made is not None:
            found: Growing = made
            return found
    rng = random.Random(number)
    grown = Growing(rng, rng.choice(OPSETS))
    chosen = [k for k in RECIPES if not operators or k[1] in operators]
    count = rng.randint(2, 10)
    for _ in range(40 * count):
        if len(grown.nodes) == count:
            break
        drawn(grown, chosen)
    return grown


def judge(grown: Growing) -> list[Any]:
    """What is wrong with a model that has grown."""
    if not grown.nodes:
        return []
    model = grown.model()
    given = {i.name: grown.values[i.name] for i in model.graph.input}
    return judged(model, given, grown.values)
