"""Programs in files: saved, loaded where their source is not, compiled, run."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.base.errors import CheckpointError, TraceError
from treadle.engine.options import Options
from treadle.optimizer import SGD
from treadle.serialization import load_program, save_program

RNG = np.random.default_rng(9)


def normal(*shape: int) -> mge.Tensor:
    return mge.tensor(RNG.standard_normal(shape).astype("float32"))


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = M.Conv2d(3, 8, 3, padding=1), M.BatchNorm2d(8)
        self.head = M.Linear(8, 5)

    def forward(self, x: mge.Tensor) -> mge.Tensor:
        return self.head(F.mean(F.relu(self.norm(self.conv(x))), (2, 3)))


def copy_of(function: Any, *args: Any, **kwargs: Any) -> Any:
    file = io.BytesIO()
    save_program(function, file, *args, **kwargs)
    return load_program(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("kind", ["compile", "trace", "plain"])
def test_a_model_gives_the_same_bits(kind: str) -> None:
    net = Net()
    net.eval()
    function: Any = {"compile": mge.jit.compile, "trace": mge.jit.trace, "plain": lambda f: f}[kind]
    x = normal(2, 3, 9, 8)
    loaded = copy_of(function(net), normal(2, 3, 9, 8))
    np.testing.assert_array_equal(loaded(x).numpy(), mge.jit.compile(net)(x).numpy())
    np.testing.assert_array_equal(loaded(x.numpy()).numpy(), loaded(x).numpy())


def test_a_training_step_goes_on_where_it_was_saved() -> None:
    net = Net()
    gm, optimizer = GradManager().attach(net.parameters()), SGD(net.parameters(), 0.1, 0.9)

    def step(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = F.loss.cross_entropy(net(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    compiled = mge.jit.compile(step)
    x, y = normal(4, 3, 6, 6), mge.tensor([0, 1, 2, 3])
    for _ in range(3):
        compiled(x, y)
    loaded = copy_of(compiled, x, y)
    found = [loaded(x, y).item() for _ in range(4)]
    assert found == [compiled(x, y).item() for _ in range(4)]
    assert found[-1] < found[0]


def test_arguments_and_results_keep_their_structure() -> None:
    def function(pair: Any, scale: float, *, name: str) -> Any:
        a, b = pair
        return {"sum": a + b, name: [a * scale, None, 3]}

    a, b = normal(2, 3), normal(2, 3)
    loaded = copy_of(mge.jit.compile(function), (a, b), 2.0, name="double")
    made = loaded((b, a), 2.0, name="double")
    assert list(made) == ["sum", "double"] and made["double"][1:] == [None, 3]
    np.testing.assert_array_equal(made["double"][0].numpy(), b.numpy() * 2)


def test_constants_element_types_and_control_flow() -> None:
    table = mge.tensor(RNG.standard_normal((40, 30)).astype("float32"))

    @mge.jit.compile
    def function(x: mge.Tensor, n: mge.Tensor) -> Any:
        doubled = mge.jit.cond(n > 2, lambda v: v * 2, lambda v: v - 1, x)
        return (doubled.astype("bfloat16") @ table.astype("bfloat16")).astype("float32"), n

    x = normal(3, 40)
    loaded = copy_of(function, x, mge.tensor(1))
    for n in (1, 5):
        for found, expected in zip(
            loaded(x, mge.tensor(n)), function(x, mge.tensor(n)), strict=True
        ):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_a_process_without_the_source_runs_it(tmp_path: Path) -> None:
    net = Net()
    net.eval()
    x = normal(1, 3, 4, 4)
    path = tmp_path / "net.program"
    save_program(mge.jit.compile(net), path, x)
    code = (
        "import sys, numpy as np\n"
        "from treadle.serialization import load_program\n"
        "made = load_program(sys.argv[1])(np.load(sys.argv[2]))\n"
        "np.save(sys.argv[3], made.numpy())\n"
    )
    np.save(tmp_path / "x.npy", x.numpy())
    files = [str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, timeout=120)
    expected = mge.jit.compile(net)(x).numpy()
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)


@pytest.mark.parametrize("made", [lambda f: f, mge.jit.compile, mge.jit.trace])
def test_what_decorates_a_function_is_saved_with_it(made: Any) -> None:
    """`functools.wraps` leaves a way around a decorator, which was taken."""
    x = normal(3, 3)
    halved = mge.amp.autocast(low_prec_dtype="bfloat16")(lambda x: F.matmul(x, x))
    assert copy_of(made(halved), x)(x).dtype == halved(x).dtype != x.dtype


def test_options_of_the_loaded_program() -> None:
    file = io.BytesIO()
    save_program(lambda x: F.exp(x) + 1, file, normal(3))
    x = normal(3)
    loaded = load_program(io.BytesIO(file.getvalue()), options=Options(level=0))
    np.testing.assert_allclose(loaded(x).numpy(), np.exp(x.numpy()) + 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((F.ones((2, 3)), 2.0), "must be float32"),
        ((F.ones((3, 3)), 3.0), r"value 1 must be 2\.0"),
        ((F.ones((3, 3), dtype="int32"), 2.0), "must be float32"),
        ((F.ones((3, 3)),), "other arguments"),
    ],
)
def test_other_arguments_are_refused(args: Any, message: str) -> None:
    loaded = copy_of(mge.jit.compile(lambda x, s: x * s), F.ones((3, 3)), 2.0)
    with pytest.raises(TraceError, match=message):
        loaded(*args)


def test_what_a_file_cannot_hold() -> None:
    w = mge.Parameter(np.ones(3, "float32"))
    gm = GradManager().attach([w])

    def leaves_gradients(x: mge.Tensor) -> mge.Tensor:
        with gm:
            y = (w * x).sum()
            gm.backward(y)
        return y

    with pytest.raises(TraceError, match="gradients"):
        copy_of(leaves_gradients, F.ones(3))
    with pytest.raises(TraceError, match="random"):
        copy_of(lambda x: F.dropout(x, 0.5), F.ones(3))


def test_other_files_are_no_programs(tmp_path: Path) -> None:
    mge.save({"a": F.ones(3)}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="no program"):
        load_program(tmp_path / "a")
    mge.save({"format": "treadle program 1", "graph": "graph x() {}"}, tmp_path / "b")
    with pytest.raises(CheckpointError, match="damaged"):
        load_program(tmp_path / "b")
