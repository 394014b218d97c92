"""Every op that is compiled, and networks, as WebAssembly in Node.

Needs Node and a C compiler for WebAssembly (`make setup-cross`); run by `make test-cross`.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cross.test_targets import PLAIN, FewBits, Maps, Tokens, check_results, compiled, traced
from tests.deploy.test_ranged import RANGES, Net, Recurrent, dumped, evaluated, given

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import CompileError
from treadle.cli import main
from treadle.deploy.wasm import write_wasm
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of

Array = np.ndarray[Any, Any]
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.cross,
    pytest.mark.skipif(NODE is None, reason="there is no Node; see make setup-cross"),
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None, reason="there is no ziglang: treadle[aot]"
    ),
]


def outputs(model: Model, inputs: list[Array], folder: Path, options: Options) -> bytes:
    """What the module gives in Node."""
    made = write_wasm(model, folder, "ops", options)
    (folder / "in").write_bytes(b"".join(a.tobytes() for a in inputs))
    script = Path(__file__).with_name("all.mjs")
    command = [str(NODE), str(script), str(made.script), str(folder / "in"), str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "out").read_bytes()


@pytest.mark.timeout(1200)
def test_every_op_gives_numpys_results(tmp_path: Path) -> None:
    cases = list(compiled("wasm"))
    arrays = [a for _, given in cases for a in given]
    found = outputs(traced(cases), arrays, tmp_path, PLAIN)
    check_results(cases, found, "wasm")


@pytest.mark.parametrize(
    ("network", "shape", "off"),
    [
        (Maps, (2, 3, 64, 64), 1e-5),
        (Tokens, (2, 33, 64), 1e-5),
        # Four roundings to 8 bits, of which steps of other sums may take any to a neighbor.
        (FewBits, (19 * 17 * 17,), 0.02),
    ],
)
def test_networks_give_the_results_of_eager_code(
    network: type[M.Module], shape: tuple[int, ...], off: float, tmp_path: Path
) -> None:
    mge.random.seed(1)
    module = network()
    module.eval()
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    given = (mge.tensor(x),)
    captured = capture(module, given, {}, "net")
    model = model_of("net", captured, argument_names(given, {}), Ends(["x"], ["y"]))
    found = outputs(model, [x], tmp_path, Options())
    wanted = module(*given).numpy()
    got = np.frombuffer(found, np.float32).reshape(wanted.shape)
    assert abs(got - wanted).max() <= off * max(1, abs(wanted).max())


def test_numbers_that_need_a_sum_rounded_once(tmp_path: Path) -> None:
    """WebAssembly has no fused multiply-add; remainders and reductions of angles are exact."""

    def function(x: Any, y: Any, angle: Any) -> Any:
        return F.concat([x % y, F.floor_div(x, y), F.sin(angle), F.tan(angle)])

    x = np.array([1, 2, -1, 1e30, 7], np.float32)
    y = np.array([0.1, 0.2, 0.3, 7.7, -0.7], np.float32)
    angle = np.array([355, 710, 1e4, 12345.678, 0.5], np.float32)
    given = tuple(map(mge.tensor, (x, y, angle)))
    captured = capture(function, given, {}, "net")
    ends = Ends(["x", "y", "angle"], ["z"])
    model = model_of("net", captured, argument_names(given, {}), ends)
    found = np.frombuffer(outputs(model, [x, y, angle], tmp_path, Options()), np.float32)
    wide = angle.astype(np.float64)
    np.testing.assert_array_equal(found[:10], np.concatenate([np.fmod(x, y), x // y]))
    np.testing.assert_allclose(found[10:], np.concatenate([np.sin(wide), np.tan(wide)]), rtol=3e-7)


@pytest.mark.parametrize("kind", [Net, Recurrent])
def test_one_module_serves_all_extents(kind: type[Net], tmp_path: Path) -> None:
    mge.random.seed(0)
    net = evaluated(kind())
    model = dumped(net, tmp_path / "net.mge", **given(3, 7))
    made = write_wasm(model, tmp_path, "net", ranges=RANGES)
    assert made.ranges == {"image_0": (0, 9), "image_1": (1, 15)}
    each = [given(n, length) for n in (3, 0, 1, 2, 9, 7) for length in (15, 1, 2, 7)]
    cases = [
        {
            "extents": {f"image_{i}": extent for i, extent in enumerate(arrays["image"].shape[:2])},
            "inputs": {name: array.reshape(-1).tolist() for name, array in arrays.items()},
        }
        for arrays in each
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    shutil.copy(Path(__file__).with_name("ranged.mjs"), tmp_path)
    done = subprocess.run([str(NODE), "ranged.mjs"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    for results, arrays in zip(found, each, strict=True):
        wanted: Any = net(*(mge.tensor(a, dtype=a.dtype) for a in arrays.values()))
        for got, want in zip(results, wanted, strict=True):
            assert tuple(got["shape"]) == want.shape
            data = np.array(got["data"]).reshape(want.shape)
            np.testing.assert_allclose(data, want.numpy(), rtol=1e-4, atol=1e-5)


def test_the_command_takes_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumped(lambda x: x * 2 + 1, tmp_path / "net.mge", x=np.ones((2, 3), np.float32))
    asked = ["compile", str(tmp_path / "net.mge"), "--emit", "wasm", "--shape", "x=1..9,3"]
    assert main(asked) == 0
    assert "ranges   x_0 1 to 9" in capsys.readouterr().out
    assert (tmp_path / "net.wasm").exists() and (tmp_path / "net.mjs").exists()


def test_sizes_that_no_memory_holds_are_refused(tmp_path: Path) -> None:
    model = dumped(lambda x: F.exp(x) + 1, tmp_path / "net.mge", x=np.ones((2, 3), np.float32))
    with pytest.raises(CompileError, match="more memory than the 4 GiB"):
        write_wasm(model, tmp_path, "net", ranges={"x": [(1, 2**29), 3]})
    write_wasm(model, tmp_path, "net", ranges={"x": [(1, 2**26), 3]})
    program = """
    import assert from "node:assert";
    import { load } from "./net.mjs";
    const model = await load();
    model.setExtents({ x_0: 2 });
    const why = /RangeError: the model needs more memory for x_0 = 67108864/;
    assert.throws(() => model.setExtents({ x_0: 2 ** 26 }), why);
    const [y] = Object.values(model.run({ x: [0, 0, 0, 0, 0, 0] }));
    assert.deepEqual([...y], [2, 2, 2, 2, 2, 2]);
    """
    (tmp_path / "asks.mjs").write_text(program, encoding="utf-8")
    command = [str(NODE), "--wasm-max-mem-pages=1000", "asks.mjs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_script_tells_what_is_wrong(tmp_path: Path) -> None:
    def row(table: Any, index: Any) -> Any:
        return F.gather(table, 0, F.broadcast_to(index.reshape((2, 1)), (2, 2)))

    given = (mge.tensor(np.zeros((3, 2), np.float32)), mge.tensor(np.zeros(2), dtype="int64"))
    captured = capture(row, given, {}, "net")
    names = Ends(["table", "index"], ["row"])
    write_wasm(model_of("net", captured, argument_names(given, {}), names), tmp_path, "net")
    shutil.copy(Path(__file__).with_name("asks.mjs"), tmp_path)
    done = subprocess.run([str(NODE), "asks.mjs"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
