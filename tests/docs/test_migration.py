"""Every row of docs/migration.md gives what NumPy and PyTorch give.

Rows without a NumPy column are compared with values recorded from PyTorch; `pytest -m oracle
--update-golden` records them anew.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.docs.pages import DOCS, blocks, code, section, table

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as O
from treadle.base.errors import TreadleError

PAGE = DOCS / "migration.md"
RECORDED = Path(__file__).with_name("migration_values.json")
CALLS = [
    "Creating",
    "Element by element",
    "Reducing, sorting",
    "Shapes",
    "Picking elements",
    "Linear algebra",
    "Layers as functions",
    "Losses",
    "Tensors",
]


def rows(*titles: str) -> list[list[str]]:
    return [[code(c) for c in row] for title in titles for row in table(section(PAGE, title))]


def inputs() -> dict[str, np.ndarray]:
    """The inputs that the page's first block makes."""
    names: dict[str, Any] = {}
    exec(blocks(PAGE)[0].code, names)
    return names["inputs"]


ARRAYS = inputs()
MODULES = {"mge": mge, "F": F, "M": M, "O": O, "np": np}


def ours(expression: str) -> Any:
    tensors = {n: mge.tensor(a) for n, a in ARRAYS.items() if n != "array"}
    return eval(expression, {**MODULES, **tensors, "array": ARRAYS["array"]})


def theirs(expression: str) -> Any:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    tensors = {n: torch.from_numpy(a.copy()) for n, a in ARRAYS.items() if n != "array"}
    names = {"torch": torch, "nn": torch.nn, "TF": torch.nn.functional, **tensors}
    return eval(expression, {**names, "array": ARRAYS["array"]})


def flat(result: Any) -> Iterator[np.ndarray]:
    """A result's arrays in order."""
    if isinstance(result, tuple | list) and not all(isinstance(r, int) for r in result):
        for part in result:
            yield from flat(part)
    else:
        yield np.asarray(result)


def check_equal(got: Any, wanted: Any) -> None:
    ours, theirs = list(flat(got)), list(flat(wanted))
    assert [a.shape for a in ours] == [a.shape for a in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), rtol=2e-5, atol=2e-5)


def test_page_maps_at_least_100_calls() -> None:
    mapped = [row for row in rows(*CALLS, "Modules", "Optimizers") if all(row[:1])]
    assert len({row[0] for row in mapped}) >= 100


@pytest.mark.parametrize("row", rows(*CALLS), ids=lambda row: row[2])
def test_call_gives_what_numpy_gives(row: list[str]) -> None:
    pytorch, numpy, treadle = row
    if numpy:
        wanted = eval(numpy, {"np": np, **ARRAYS})
    else:
        wanted = json.loads(RECORDED.read_text(encoding="utf-8"))[pytorch]
        wanted = [np.array(part, "float64") for part in wanted]
    check_equal(ours(treadle), wanted)


@pytest.mark.oracle
@pytest.mark.parametrize("row", rows(*CALLS), ids=lambda row: row[2])
def test_call_gives_what_pytorch_gives(row: list[str]) -> None:
    check_equal(ours(row[2]), theirs(row[0]))


@pytest.mark.oracle
def test_recorded_values_are_those_of_pytorch(request: pytest.FixtureRequest) -> None:
    values = {
        pytorch: [np.round(a.astype("float64"), 6).tolist() for a in flat(theirs(pytorch))]
        for pytorch, numpy, _ in rows(*CALLS)
        if not numpy
    }
    if request.config.getoption("--update-golden"):
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert recorded.keys() == values.keys()
    for name, value in values.items():
        check_equal([np.array(part) for part in recorded[name]], [np.array(p) for p in value])


@pytest.mark.parametrize("row", rows("Modules"), ids=lambda row: row[1])
def test_module_takes_its_input(row: list[str]) -> None:
    module = ours(row[1])
    module.eval()
    assert np.isfinite(module(ours(row[2])).numpy()).all()


@pytest.mark.oracle
@pytest.mark.parametrize("row", rows("Modules"), ids=lambda row: row[1])
def test_module_gives_what_pytorch_gives(row: list[str]) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    module, reference = ours(row[1]), theirs(row[0])
    state = dict(module.named_tensors())
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            if name in state:
                tensor.copy_(torch.from_numpy(state[name].numpy().copy()).reshape(tensor.shape))
        assert {n for n, _ in reference.named_parameters()} <= state.keys()
        module.eval()
        reference.eval()
        check_equal(module(ours(row[2])), reference(theirs(row[2])))


GRADIENTS = np.random.default_rng(1).standard_normal((3, 4)).astype("float32")


def three_steps(parameter: Any, optimizer: Any, as_gradient: Callable[[np.ndarray], Any]) -> None:
    for gradient in GRADIENTS:
        parameter.grad = as_gradient(gradient.copy())
        optimizer.step()


@pytest.mark.parametrize("row", rows("Optimizers"), ids=lambda row: row[1])
def test_optimizer_moves_against_the_gradient(row: list[str]) -> None:
    parameter = mge.Parameter(ARRAYS["v"])
    optimizer = eval(row[1], {**MODULES, "P": parameter})
    parameter.grad = mge.tensor(np.ones(4, "float32"))
    optimizer.step()
    assert (parameter.numpy() < ARRAYS["v"]).all()


@pytest.mark.oracle
@pytest.mark.parametrize("row", rows("Optimizers"), ids=lambda row: row[1])
def test_optimizer_steps_as_pytorch_does(row: list[str]) -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    parameter = mge.Parameter(ARRAYS["v"])
    three_steps(parameter, eval(row[1], {**MODULES, "P": parameter}), mge.tensor)
    reference = torch.nn.Parameter(torch.from_numpy(ARRAYS["v"].copy()))
    optimizer = eval(row[0], {"torch": torch, "P": reference})
    three_steps(reference, optimizer, torch.from_numpy)
    check_equal(parameter, reference.detach())


DIFFERENCES = "Different from MegEngine on purpose"


def shown(expression: str, names: dict[str, Any]) -> str:
    """What an interactive session would show: output, else the value, else the error."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            value = eval(expression, names)
    except TreadleError as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return printed.getvalue().rstrip("\n") or repr(value)


@pytest.mark.parametrize("row", rows(DIFFERENCES), ids=lambda row: row[2])
def test_difference_from_megengine_is_as_shown(row: list[str]) -> None:
    names: dict[str, Any] = {**MODULES, "T": mge.Tensor}
    helpers = [b for b in blocks(PAGE) if b.code.startswith("def gradients")]
    exec(helpers[0].code, names)
    assert shown(row[2], names) == row[3]
