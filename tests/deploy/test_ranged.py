"""Files for ranges of extents: any of them runs by the file's own code; what is refused."""

import hashlib
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.damage.mutate import resealed
from tests.deploy.networks import image

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.base.arithmetic import ExpressionWriter, evaluate, evaluate_all
from treadle.base.errors import (
    CheckpointError,
    IndexRangeError,
    LoadError,
    OutOfMemory,
    ShapeError,
)
from treadle.base.files import sealed
from treadle.base.files.container import read_header
from treadle.base.files.source import open_source
from treadle.base.symbol import equal, less_equal, maximum, minimum, symbol
from treadle.deploy import compile_offline, load_offline
from treadle.engine.package.models import Model, Runner, read_models, write_models
from treadle.lite import LiteNetwork

RANGES: dict[str, Any] = {"image": [(0, 9), (1, 15), 6], "rows": [(1, 15)]}


class Net(M.Module):
    """Rows of a table by number, a product whose weights are packed, sums along open axes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = M.Embedding(11, 6)
        self.fc = M.Linear(6, 5)

    def forward(self, x: Any, rows: Any) -> Any:
        y = self.fc(F.relu(x + self.table(rows)))
        return F.softmax(y, axis=1), F.concat([y.sum(axis=1), y[:, 0]], axis=1)


class Recurrent(Net):
    """A scan over an open axis whose turns branch and loop; rows of the table in a branch."""

    def forward(self, x: Any, rows: Any) -> Any:
        def turn(s: Any, e: Any) -> Any:
            s = jit.cond(e.sum() > 0, lambda: F.tanh(s + e), lambda: F.softmax(s + e, axis=0))
            (s,) = jit.while_loop(lambda s: abs(s).sum() > 9, lambda s: (s * 0.5,), (s,))
            return s, self.fc(s).sum(axis=0)

        table = jit.cond(rows.sum() > 5, lambda: self.table(rows), lambda: self.table(rows) * 2)
        entries = F.transpose(x, (1, 0, 2)) + table.reshape(-1, 1, 6)
        (state,), (sums,) = jit.scan(turn, (x[:, 0],), (entries,))
        return state, sums


def evaluated(made: M.Module) -> M.Module:
    mge.set_default_device("cpux")
    mge.random.seed(0)
    made.eval()
    return made


@pytest.fixture(scope="module")
def net() -> M.Module:
    mge.random.seed(0)
    return evaluated(Net())


def dumped(function: Any, path: Path, **arguments: Any) -> Model:
    @jit.trace(symbolic=True, capture_as_const=True)
    def traced(*args: Any) -> Any:
        return function(*args)

    traced(*(mge.tensor(a, dtype=a.dtype) for a in arguments.values()))
    traced.dump(path, arg_names=list(arguments))
    return read_models(path)[0]


def given(n: int, length: int) -> dict[str, Any]:
    rows = np.arange(length, dtype=np.int32) % 11
    return {"image": image(n, length, 6, seed=n + length), "rows": rows}


@pytest.fixture(scope="module")
def model(net: M.Module, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return dumped(net, tmp_path_factory.mktemp("ranged") / "net.mge", **given(3, 7))


@pytest.fixture(scope="module")
def compiled(model: Model) -> Model:
    return compile_offline(model, ranges=RANGES)


@pytest.fixture(scope="module")
def file(compiled: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranged") / "net.tm"
    write_models(path, [compiled], "test")
    return path


def holds(net: M.Module, found: list[Any], n: int, length: int) -> None:
    wanted = net(*(mge.tensor(a, dtype=a.dtype) for a in given(n, length).values()))
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


def test_all_extents_of_the_ranges_run(net: M.Module, file: Path) -> None:
    offline = load_offline(file)
    assert offline.ranges == {"image_0": (0, 9), "image_1": (1, 15)}
    assert [p.pattern for p in offline.inputs] == [("image_0", "image_1", 6), ("image_1",)]
    assert offline.gears == [{"image": (3, 7, 6), "rows": (7,)}]
    for n in range(10):
        for length in (1, 2, 3, 8, 14, 15):
            holds(net, list(offline.run(given(n, length)).values()), n, length)
    assert not offline._compiled
    assert "treadle.engine.package.models" not in vars(offline)


def test_a_mask_has_the_extents_of_the_tokens_that_it_is_for(tmp_path: Path) -> None:
    words, places = M.Embedding(11, 6), M.Embedding(15, 6)

    def encoder(tokens: Any, mask: Any) -> Any:
        x = words(tokens) + places.weight[: tokens.shape[1]]
        seen = F.scaled_dot_product_attention(x, x, x, attn_mask=F.expand_dims(mask > 0, 1))
        return x + seen

    def arguments(n: int, length: int) -> dict[str, Any]:
        tokens = np.random.default_rng(n).integers(0, 11, (n, length), np.int32)
        mask = np.arange(length) < np.arange(1, n + 1)[:, None]
        return {"tokens": tokens, "mask": mask.astype(np.int32)}

    model = dumped(encoder, tmp_path / "encoder.mge", **arguments(2, 7))
    span = [(1, 4), (1, 15)]
    made = compile_offline(model, ranges={"tokens": span, "mask": span})
    write_models(tmp_path / "encoder.tm", [made], "test")
    offline = load_offline(tmp_path / "encoder.tm")
    assert offline.inputs[0].pattern == offline.inputs[1].pattern and len(offline.ranges) == 2
    for n, length in ((1, 1), (4, 15), (3, 1), (1, 9), (2, 14)):
        (found,) = offline.run(arguments(n, length)).values()
        wanted = encoder(*(mge.tensor(a, dtype=a.dtype) for a in arguments(n, length).values()))
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_branches_and_loops_run_at_all_extents(tmp_path: Path) -> None:
    net = evaluated(Recurrent())
    made = compile_offline(dumped(net, tmp_path / "net.mge", **given(3, 7)), ranges=RANGES)
    assert len(made.native[0].gears) <= 8
    write_models(tmp_path / "net.tm", [made], "test")
    offline = load_offline(tmp_path / "net.tm")
    for n in range(10):
        for length in (1, 2, 3, 8, 14, 15):
            holds(net, list(offline.run(given(n, length)).values()), n, length)
    assert not offline._compiled
    with pytest.raises(IndexRangeError, match="11"):
        offline.run({**given(2, 4), "rows": np.array([1, 11, 0, 2], np.int32)})


def test_recurrent_layers_run_at_any_length(tmp_path: Path) -> None:
    """Their turns were written out, so a file was for one length."""
    net = evaluated(M.LSTM(6, 4, bidirectional=True))
    model = dumped(lambda x: net(x)[0], tmp_path / "net.mge", x=image(5, 3, 6))
    made = compile_offline(model, ranges={"x": [(1, 9), (1, 4), 6]})
    write_models(tmp_path / "net.tm", [made], "test")
    offline = load_offline(tmp_path / "net.tm")
    for length in (1, 2, 5, 9):
        for n in (1, 3, 4):
            x = image(length, n, 6)
            (found,) = offline.run({"x": x}).values()
            np.testing.assert_allclose(found, net(mge.tensor(x))[0].numpy(), rtol=1e-4, atol=1e-5)
    assert not offline._compiled


def test_a_handful_of_programs_share_weights(
    compiled: Model, model: Model, file: Path, tmp_path: Path
) -> None:
    [part] = compiled.native
    assert len(part.gears) <= 12
    single = compile_offline(model).native[0]
    assert part.weights.nbytes <= 3 * single.weights.nbytes
    write_models(tmp_path / "again.tm", [compile_offline(model, ranges=RANGES)], "test")
    assert (tmp_path / "again.tm").read_bytes() == file.read_bytes()


def test_edges_choose_the_programs(tmp_path: Path) -> None:
    def plain(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(F.relu(x @ x.T), -1) @ x

    head = jit.trace(symbolic=True, capture_as_const=True)(plain)
    head(mge.tensor(np.ones((5, 4), "float32")))
    path = tmp_path / "head.tm"
    head.dump(path, arg_names=["x"])
    with pytest.raises(ShapeError, match="1 to 70 to 64 of input x is not a range"):
        compile_offline(read_models(path)[0], ranges={"x": ((1, 70, 64), 4)})
    made = compile_offline(read_models(path)[0], ranges={"x": ((2, 8, 64), 4)})
    spans = [gear.many.ranges for gear in made.native[0].gears if gear.many is not None]
    assert [[*span.values()] for span in spans] == [[(2, 7)], [(8, 64)]]
    write_models(path, [made], "test")
    offline = load_offline(path)
    for n in (2, 7, 8, 64):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype("float32")
        [found] = offline.run({"x": x}).values()
        np.testing.assert_allclose(found, plain(mge.tensor(x)).numpy(), rtol=1e-4)


def test_edges_of_equal_axes_are_joined(tmp_path: Path) -> None:
    def plain(x: mge.Tensor, y: mge.Tensor) -> mge.Tensor:
        return (x + y).sum(1)

    added = jit.trace(symbolic=True, capture_as_const=True)(plain)
    added(*(mge.tensor(np.ones((6, 5), "float32")) for _ in range(2)))
    added.dump(tmp_path / "added.tm", arg_names=["x", "y"])
    [model] = read_models(tmp_path / "added.tm")

    def begins(x: tuple[int, ...], y: tuple[int, ...]) -> list[int]:
        made = compile_offline(model, ranges={"x": (x, 5), "y": (y, 5)}).native[0].gears
        return [low for g in made if g.many is not None for low, _ in g.many.ranges.values()]

    assert begins((2, 8, 16, 40), (2, 40)) == begins((2, 40), (2, 8, 16, 40)) == [2, 8, 16]
    assert begins((2, 8, 40), (2, 9, 40)) == [2, 8, 9]
    assert begins((0, 1, 40), (0, 40)) == [2, 16], "0 and 1 have programs of their own anyway"


def test_threads_with_different_extents(net: M.Module, file: Path) -> None:
    offline, failures = load_offline(file), list[BaseException]()

    def work(start: int) -> None:
        try:
            for turn in range(40):
                n, length = (start + turn) % 10, 1 + (7 * start + 3 * turn) % 15
                holds(net, list(offline.run(given(n, length)).values()), n, length)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"image": (10, 3, 6), "rows": (3,)}, "the extent image_0 is 10, and .* 0 to 9"),
        ({"image": (3, 16, 6), "rows": (16,)}, "the extent image_1 is 16"),
        ({"image": (3, 4, 6), "rows": (5,)}, "its inputs have other shapes"),
        ({"image": (3, 4, 7), "rows": (4,)}, "its inputs have other shapes"),
    ],
)
def test_other_extents_are_named(file: Path, inputs: dict[str, Any], problem: str) -> None:
    kinds = {"image": np.float32, "rows": np.int32}
    arrays = {name: np.zeros(shape, kinds[name]) for name, shape in inputs.items()}
    with pytest.raises(ShapeError, match=problem):
        load_offline(file).run(arrays)


def test_what_the_graph_makes_of_other_extents(net: M.Module, file: Path) -> None:
    for options in ({"recompile": True}, {"allow_native": False}):
        offline = load_offline(file, **options)
        for n, length in ((12, 41), (13, 99), (15, 64), (1, 41), (9, 20)):
            holds(net, list(offline.run(given(n, length)).values()), n, length)
        plans: Any = offline._compiled and offline._compiled._plans
        assert len(plans.regimes) <= 3


def test_indices_are_checked_at_the_extents_of_a_call(tmp_path: Path) -> None:
    def rows(x: Any, at: Any) -> Any:
        return F.gather(x * 2, 0, at)

    at = np.zeros((2, 3), np.int32)
    model = dumped(rows, tmp_path / "rows.mge", x=image(5, 3), at=at)
    made = compile_offline(model, ranges={"x": [(2, 50), 3], "at": [(2, 9), 3]})
    write_models(tmp_path / "rows.tm", [made], "test")
    offline = load_offline(tmp_path / "rows.tm")
    for n in (2, 33, 50):
        wrong = np.full((4, 3), n - 1, np.int32)
        assert offline.run([image(n, 3), wrong])
        wrong[2, 1] = n
        with pytest.raises(IndexRangeError, match=f"index {n} is out of .* {n}"):
            offline.run([image(n, 3), wrong])
        wrong[2, 1] = -n - 1
        with pytest.raises(IndexRangeError, match=f"index {-n - 1} "):
            offline.run([image(n, 3), wrong])


def test_extents_that_the_model_does_not_take(tmp_path: Path) -> None:
    def halves(x: Any) -> Any:
        return x.reshape(-1, 4).sum(axis=1)

    model = dumped(halves, tmp_path / "m.mge", x=image(8))
    made = compile_offline(model, ranges={"x": [(2, 64)]})
    write_models(tmp_path / "m.tm", [made], "test")
    offline = load_offline(tmp_path / "m.tm")
    [found] = offline.run([np.ones(12, np.float32)]).values()
    assert found.tolist() == [4, 4, 4]
    with pytest.raises(ShapeError, match=r"does not take x_0 = 13: it needs .*x_0"):
        offline.run([np.ones(13, np.float32)])


@pytest.mark.parametrize(
    ("ranges", "problem"),
    [
        ({"picture": [3]}, "no input 'picture'"),
        ({"image": [(1, 2), 3]}, "has 3 axes, not 2"),
        ({"image": [(1, 2), 3, 5]}, "is 6 in the model"),
        ({"image": [(1, 2), 3, 6], "rows": [4]}, "are equal in the model"),
        ({"image": [(3, 2), 3, 6]}, "is not a range"),
    ],
)
def test_ranges_that_do_not_fit(model: Model, ranges: dict[str, Any], problem: str) -> None:
    with pytest.raises(ShapeError, match=problem):
        compile_offline(model, ranges=ranges)


def test_gears_and_ranges_exclude_each_other(model: Model) -> None:
    with pytest.raises(ShapeError, match="not both"):
        compile_offline(model, [{}, {}], ranges=RANGES)
    with pytest.raises(ShapeError, match="no form for other extents"):
        compile_offline(replace(model, opened=None), ranges=RANGES)


def test_a_runner_takes_the_code(net: M.Module, compiled: Model) -> None:
    shapes = [a.shape for a in given(5, 9).values()]
    runner = Runner(compiled.at(shapes), native=compiled.native)
    holds(net, runner(list(given(5, 9).values())), 5, 9)
    assert runner._native is not None


def test_lite_takes_any_extent(net: M.Module, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    network = LiteNetwork()
    network.load(str(file))
    assert network.ranges == {"image_0": (0, 9), "image_1": (1, 15)}
    for n, length in ((2, 5), (9, 15), (1, 1)):
        for name, array in given(n, length).items():
            network.get_io_tensor(name).set_data_by_copy(array)
        network.forward()
        network.wait()
        names = network.get_all_output_name()
        holds(net, [network.get_io_tensor(name).to_numpy() for name in names], n, length)
    assert "portable part" not in caplog.text


# -- hostile files -------------------------------------------------------------------------------


def lied(file: Path, bad: Path, change: Any) -> Path:
    """The file with another manifest, and other words of its first gear for many extents."""
    with open_source(file) as source:
        header = read_header(source)
        data = bytearray(source.read(header.data_start, source.size))
    manifest, entries = json.loads(header.metadata[sealed.MANIFEST]), header.entries
    [entry] = manifest["models"][0]["native"]
    at = entries["native0.0.words"].begin
    for gear in entry["gears"]:
        at += 8 * (gear["words"] + gear["places"])
        if "many" in gear:
            break
    raw = bytearray(data[at : at + gear["many"]["width"]])
    change(entry, gear, raw)
    data[at : at + len(raw)] = raw
    member = entries["native0.0.words"]
    words = bytes(data[member.begin : member.end])
    manifest["sha256"]["native0.0.words"] = hashlib.sha256(words).hexdigest()
    bad.write_bytes(resealed(manifest, entries, bytes(data)))
    return bad


def rows_of(gear: Any, raw: bytearray) -> Any:
    start = 8 * gear["many"]["code"]["registers"]
    return np.frombuffer(raw, np.int32, offset=start).reshape(-1, 4)


def _code(entry: Any, gear: Any, raw: bytearray) -> None:
    rows_of(gear, raw)[0, 0] = 9


def _beyond(entry: Any, gear: Any, raw: bytearray) -> None:
    rows_of(gear, raw)[-1, 1] = 1 << 20


def _negative(entry: Any, gear: Any, raw: bytearray) -> None:
    rows_of(gear, raw)[0, 2] = -5


def _numbers(entry: Any, gear: Any, raw: bytearray) -> None:
    gear["many"]["code"]["first"] = 0


def _width(entry: Any, gear: Any, raw: bytearray) -> None:
    gear["many"]["code"]["registers"] += 2


def _symbols(entry: Any, gear: Any, raw: bytearray) -> None:
    gear["many"]["code"]["symbols"] = ["other"]


def _peak(entry: Any, gear: Any, raw: bytearray) -> None:
    gear["many"]["code"]["at"][5] = 1 << 19


def _results(entry: Any, gear: Any, raw: bytearray) -> None:
    gear["many"]["code"]["results"][0] = [0]


def _undeclared(entry: Any, gear: Any, raw: bytearray) -> None:
    del entry["ranges"]


def _range(entry: Any, gear: Any, raw: bytearray) -> None:
    entry["ranges"]["extents"][0] = ["image_0", 5, 2]


def _pattern(entry: Any, gear: Any, raw: bytearray) -> None:
    gear["many"]["inputs"][0][0] = "nobody"


@pytest.mark.parametrize(
    "change",
    [
        _code,
        _beyond,
        _negative,
        _numbers,
        _width,
        _symbols,
        _peak,
        _results,
        _undeclared,
        _range,
        _pattern,
    ],
)
def test_damaged_code_is_refused(file: Path, tmp_path: Path, change: Any) -> None:
    with pytest.raises(CheckpointError, match="damaged"):
        load_offline(lied(file, tmp_path / "bad.tm", change), allow_native=True)


def test_sizes_that_code_gets_wrong(file: Path, tmp_path: Path) -> None:
    def change(entry: Any, gear: Any, raw: bytearray) -> None:
        registers = np.frombuffer(raw, np.int64, gear["many"]["code"]["registers"])
        registers[registers > 1] = -(1 << 40)

    bad = load_offline(lied(file, tmp_path / "bad.tm", change), allow_native=True)
    with pytest.raises((LoadError, OutOfMemory, ShapeError)):
        for n in range(10):
            for length in (2, 9, 15):
                bad.run(given(n, length))


def test_memory_beyond_the_bound_names_extents(file: Path, tmp_path: Path) -> None:
    def change(entry: Any, gear: Any, raw: bytearray) -> None:
        for one in entry["gears"]:
            if "many" in one:
                one["arena"] = 64

    bad = load_offline(lied(file, tmp_path / "bad.tm", change), allow_native=True)
    with pytest.raises(OutOfMemory, match=r"at image_0 = 9, image_1 = 15 it needs .* bytes"):
        bad.run(given(9, 15))


def test_code_for_many_extents_at_once_is_that_for_each() -> None:
    m, n = symbol("m"), symbol("n")
    writer = ExpressionWriter(["m", "n"])
    writer.ask(less_equal(n, 3 * m))
    writer.ask(equal(m % 3, 0))
    wanted = [m * n // 5 % 7, maximum(m, 2 * n), minimum(m - n, 4), n * (1 << 60)]
    code, _ = writer.finished([writer.of(x) for x in wanted])
    points = np.array([[a, b] for a in range(1, 20) for b in range(1, 20)]).T
    fine, registers = evaluate_all(code, points)
    for column, point in enumerate(points.T):
        own = code.start.copy()
        own[:2] = point
        assert (evaluate(code.rows, own) == -1) == fine[column]
        if fine[column]:
            assert own.tolist() == registers[:, column].tolist()
    assert 0 < fine.sum() < fine.size
