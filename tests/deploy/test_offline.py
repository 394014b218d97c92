"""Offline models: written and run, here and where nothing can be compiled; what is refused."""

import os
import platform
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.networks import image, network, traced
from tests.graph.samples import graph_of

import treadle as mge
import treadle.functional as F
from treadle.backends.cpu import linking, shipped, tuning_record
from treadle.backends.program import ShippingCompiler
from treadle.base.dtype import float32
from treadle.base.errors import (
    CheckpointError,
    CompileError,
    EngineError,
    LoadError,
    ShapeError,
)
from treadle.base.symbol import symbol
from treadle.base.types import TensorType
from treadle.deploy import compile_offline, load_offline
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.package import native_part
from treadle.engine.package.models import Model, Runner, read_models, write_models
from treadle.engine.pipeline import Stages
from treadle.graph.builder import trace_body
from treadle.inspect import Inspected
from treadle.ops import REGISTRY
from treadle.ops.constant import ArrayData
from treadle.ops.matmul import Matmul

SHAPES = [(1, 3, 16, 16), (2, 3, 16, 16), (2, 3, 12, 20)]
FOREIGN = "avx2" if platform.machine() in ("aarch64", "arm64") else "neon"
"""A target that no processor of this architecture can run."""


@pytest.fixture(scope="module")
def model() -> Model:
    return traced(network(), image(*SHAPES[1]))


@pytest.fixture(scope="module")
def compiled(model: Model) -> Model:
    return compile_offline(model, [{"image": shape} for shape in SHAPES])


@pytest.fixture(scope="module")
def file(compiled: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("offline") / "net.tm"
    write_models(path, [compiled], "test")
    return path


def written(folder: Path, *models: Model) -> Path:
    path = folder / "made.tm"
    write_models(path, list(models), "test")
    return path


def expected(x: Any) -> Any:
    return network()(mge.tensor(x)).numpy()


# -- running -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_every_gear_computes_what_the_network_does(file: Path, shape: tuple[int, ...]) -> None:
    model, x = load_offline(file), image(*shape)
    assert model.target
    for inputs in ({"image": x}, [x], [x.astype(np.float64)], [np.asfortranarray(x)]):
        found = model.run(inputs)
        np.testing.assert_allclose(found["label"], expected(x), rtol=1e-5)


def test_it_says_what_it_takes_and_gives(file: Path) -> None:
    model = load_offline(file)
    [given], [made] = model.inputs, model.outputs
    assert (given.name, given.dtype, given.shapes) == ("image", np.float32, tuple(SHAPES))
    assert (made.name, made.dtype, made.shapes) == ("label", np.float32, ((1, 5), (2, 5), (2, 5)))
    assert model.gears == [{"image": shape} for shape in SHAPES]
    assert len(model.graph.inputs) == 1


ELSEWHERE = """
    import sys
    sys.modules["llvmlite"] = None
    import numpy as np
    from treadle.engine.package.offline import load_offline
    model = load_offline(sys.argv[1])
    np.save(sys.argv[2], model.run([np.load(sys.argv[3])])["label"])
    heavy = ("generators", "engine.stages", "engine.pipeline", "graph.parser", "package.models")
    print(*[name for name in sys.modules if name.endswith(heavy)])
"""


def test_it_runs_where_nothing_can_be_compiled(file: Path, tmp_path: Path) -> None:
    x, cache = image(*SHAPES[2]), tmp_path / "cache"
    np.save(tmp_path / "x.npy", x)
    script = [sys.executable, "-c", textwrap.dedent(ELSEWHERE)]
    done = subprocess.run(
        [*script, file, tmp_path / "y.npy", tmp_path / "x.npy"],
        env={**os.environ, "TREADLE_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(x), rtol=1e-5)
    assert not cache.exists()


def test_threads_share_a_model(file: Path) -> None:
    model = load_offline(file)
    xs = [image(*SHAPES[i % 3], seed=i) for i in range(6)]
    single = [model.run([x])["label"] for x in xs]
    found: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        found[number] = [model.run([xs[number]])["label"] for _ in range(30)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in found.items():
        assert all(np.array_equal(r, single[number]) for r in results)


def test_results_go_where_the_caller_wants_them(file: Path) -> None:
    model, x = load_offline(file), image(*SHAPES[0])
    place = np.full((1, 5), np.nan, np.float32)
    assert model.run([x], out={"label": place})["label"] is place
    np.testing.assert_allclose(place, expected(x), rtol=1e-5)
    for bad, problem in (
        (np.empty((2, 5), np.float32), r"has the shape \[2, 5\]"),
        (np.empty((1, 5)), "is not an array of float32"),
        (np.empty((1, 10), np.float32)[:, ::2], "is not dense"),
        (x.reshape(-1)[:5].reshape(1, 5), "shares memory with an input"),
    ):
        with pytest.raises(ShapeError, match=problem):
            model.run([x], out={"label": bad})
    with pytest.raises(EngineError, match="no output 'other'"):
        model.run([x], out={"other": place})


def test_wrong_inputs_are_named(file: Path) -> None:
    model = load_offline(file)
    with pytest.raises(EngineError, match="other names"):
        model.run({"picture": image(*SHAPES[0])})
    with pytest.raises(EngineError, match="1 inputs are needed, 2 were given"):
        model.run([image(*SHAPES[0])] * 2)
    with pytest.raises(ShapeError, match=r"image \[1, 3, 16, 16\]; image \[2, 3, 16, 16\]"):
        model.run([image(3, 3, 16, 16)])


def test_other_shapes_are_compiled_where_that_is_wanted(file: Path) -> None:
    model, x = load_offline(file, recompile=True), image(3, 3, 8, 8)
    place = np.empty((3, 5), np.float32)
    assert model.run([x], out={"label": place})["label"] is place
    np.testing.assert_allclose(place, expected(x), rtol=1e-5)
    with pytest.raises(ShapeError, match=r"has the shape \[1, 5\]"):
        model.run([x], out={"label": place[:1]})


def test_open_extents_are_for_gears_to_fill(tmp_path: Path) -> None:
    weights = ArrayData(image(4, 3))

    def body(x: Any) -> Any:
        return Matmul()(x, x.builder.constant(weights))

    graph = trace_body(body, [TensorType(float32, (symbol("n"), 4))], "open")
    model = Model(graph, ("x",), ("y",))
    with pytest.raises(ShapeError, match="input x needs extents that are numbers"):
        compile_offline(model)
    made = compile_offline(model, [{"x": (1, 4)}, {"x": (7, 4)}])
    fixed = load_offline(written(tmp_path, made))
    assert fixed.outputs[0].shapes == ((1, 3), (7, 3))
    free = load_offline(written(tmp_path, made), allow_native=False)
    assert (free.inputs[0].shapes, free.gears) == ((), [])
    for n, found in ((7, fixed), (5, free)):
        x = image(n, 4)
        np.testing.assert_allclose(found.run([x])["y"], x @ weights.array, rtol=1e-5)


def test_what_is_compiled_later_has_the_options_of_the_file(model: Model, tmp_path: Path) -> None:
    options = Options(level=1, winograd=2, disabled=("simplify",))
    path = written(tmp_path, compile_offline(model, options=options))
    found = load_offline(path, recompile=True)
    found.run([image(3, 3, 8, 8)])
    assert found._compiled is not None
    [runner] = found._compiled._own.values()
    used = runner.stages.source.options
    assert (used.level, used.winograd, used.disabled) == (1, 2, ("simplify",))


def test_engines_that_are_not_here_are_left_out(model: Model, tmp_path: Path) -> None:
    made = compile_offline(model)
    [part] = made.native
    options = {**part.about["options"], "engines": ["gone", "cpu"]}
    part = replace(part, about={**part.about, "options": options})
    found = load_offline(written(tmp_path, replace(made, native=(part,))), recompile=True)
    x = image(3, 3, 8, 8)
    np.testing.assert_allclose(found.run([x])["label"], expected(x), rtol=1e-5)
    assert found._compiled is not None
    [runner] = found._compiled._own.values()
    assert runner.stages.source.options.engines == ("cpu",)


def test_without_scratch_memory_it_takes_new(file: Path) -> None:
    model, x = load_offline(file), image(*SHAPES[0])
    model.close()
    np.testing.assert_allclose(model.run([x])["label"], expected(x), rtol=1e-5)


@pytest.mark.parametrize("name", ["cond", "while", "scan", "attention", "take", "quantize"])
def test_ops_of_all_kinds_give_the_same_bits(name: str, tmp_path: Path) -> None:
    sample = REGISTRY[name].samples()[0]
    graph, arrays = graph_of(sample), sample.arrays(sample.element_types()[0])
    ends = [f"x{i}" for i in range(len(arrays))], [f"y{i}" for i in range(len(graph.outputs))]
    model = Model(graph, tuple(ends[0]), tuple(ends[1]))
    found = load_offline(written(tmp_path, compile_offline(model))).run(arrays)
    for one, other in zip(found.values(), Runner(graph)(arrays), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


# -- what is in the file -----------------------------------------------------------------------


SAME = """
    import sys
    from tests.deploy.networks import image, network, traced
    from treadle.deploy import compile_offline
    from treadle.engine.package.models import write_models
    shapes = eval(sys.argv[2])
    model = traced(network(), image(*shapes[1]))
    write_models(sys.argv[1], [compile_offline(model, [{"image": s} for s in shapes])], "test")
"""


def test_equal_models_give_equal_files_in_any_process(file: Path, tmp_path: Path) -> None:
    if tuning_record.path().exists():  # Choices that were measured decide, too.
        (tmp_path / "cache").mkdir()
        shutil.copy(tuning_record.path(), tmp_path / "cache")
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SAME), tmp_path / "again.tm", repr(SHAPES)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((os.getcwd(), os.path.join(os.getcwd(), "src"))),
            "PYTHONHASHSEED": "3",
            "TREADLE_CACHE_DIR": str(tmp_path / "cache"),
        },
        check=True,
    )
    assert (tmp_path / "again.tm").read_bytes() == file.read_bytes()


def test_gears_share_weights_that_are_equal(model: Model, compiled: Model) -> None:
    [whole], [single] = compiled.native, compile_offline(model).native
    assert len(single.gears) == 1
    assert whole.weights.nbytes < 2 * single.weights.nbytes
    assert whole.weights.nbytes % 64 == 0


def test_weights_are_mapped_and_not_copied(file: Path) -> None:
    model = load_offline(file)
    runner = model._runner
    assert runner is not None
    weights = runner._weights
    start = weights.__array_interface__["data"][0]
    assert start % 64 == 0
    assert not weights.flags.writeable
    mapped = np.frombuffer(model._file._bytes, np.uint8)
    assert np.shares_memory(weights, mapped)


def test_the_record_has_neither_times_nor_paths(model: Model, tmp_path: Path) -> None:
    source = {"framework": "onnx", "version": "1.23", "file": "net.onnx", "sha256": "0" * 64}
    made = compile_offline(model, command="treadle compile net.onnx", source=source)
    found = load_offline(written(tmp_path, made)).manifest
    about = found["about"]
    assert about["command"] == "treadle compile net.onnx"
    assert about["source"] == source
    assert about["dtypes"].keys() == {"float32"}
    assert about["producer"].startswith("treadle ")
    assert about["compiler"].startswith("llvmlite ")
    assert found["target"]["requires"] == list(made.native[0].code.machine.requires)
    assert found["memory"]["arena"] == made.native[0].gears[0].arena
    assert found["sha256"].keys() == {"words", "code", "weights"}
    assert str(tmp_path) not in str(dict(found))


def test_the_record_counts_partitions(compiled: Model, file: Path) -> None:
    noted = load_offline(file).manifest["gears"]
    for gear, entry, shape in zip(compiled.native[0].gears, noted, SHAPES, strict=True):
        program = Inspected(Stages(compiled.at([shape])))
        assert gear.partitions == program.explain().partitions
        (part,) = gear.partitions
        assert (part.engine, part.nodes) == (
            "cpu",
            len((program.prepared or program.captured).nodes),
        )
        assert (part.reads, part.writes) == (4 * int(np.prod(shape)), 4 * shape[0] * 5)
        assert entry["partitions"] == [["cpu", part.nodes, part.reads, part.writes]]


def test_a_file_counts_the_streams_that_run_not_those_of_the_plan(tmp_path: Path) -> None:
    weight = mge.tensor(image(64, 64))
    branches = traced(lambda x: x @ weight @ weight + (x * 2) @ weight @ weight, image(64, 64))
    options = Options(level=0, streams=2, reuse_memory=False)
    streams = Inspected(Stages(branches.graph, options=options)).explain().streams
    assert (streams["count"], streams["in_use"], streams["events_in_use"]) == (2, 1, 0)
    assert streams["events"] > 0
    [gear] = compile_offline(branches, options=options).native[0].gears
    assert (gear.streams, gear.events) == (1, 0)


def test_readers_of_graphs_leave_code_alone_unless_told(file: Path, compiled: Model) -> None:
    [plain] = read_models(file)
    assert plain.native == ()
    [trusted] = read_models(file, allow_native=True)
    assert trusted.native[0].code.symbols == compiled.native[0].code.symbols
    x = image(*SHAPES[1])
    runner = Runner(trusted.graph, native=trusted.native)
    np.testing.assert_allclose(runner([x])[0], expected(x), rtol=1e-5)
    assert runner.stages.made.get("running") is None


def test_files_without_native_parts_are_as_before(model: Model, tmp_path: Path) -> None:
    path = written(tmp_path, model)
    with pytest.raises(LoadError, match="it has no native part"):
        load_offline(path)
    for found in (load_offline(path, recompile=True), load_offline(path, allow_native=False)):
        assert found.target == ""
        assert found.manifest["version"] == 1
        x = image(*SHAPES[1])
        np.testing.assert_allclose(found.run([x])["label"], expected(x), rtol=1e-5)


def test_native_parts_can_be_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "open_native", lambda code: pytest.fail("code was opened"))
    model, x = load_offline(file, allow_native=False), image(*SHAPES[1])
    np.testing.assert_allclose(model.run([x])["label"], expected(x), rtol=1e-5)


def test_one_file_holds_several_models(model: Model, compiled: Model, tmp_path: Path) -> None:
    other = traced(lambda x: F.exp(x) + 1, image(4))
    path = written(tmp_path, other, compile_offline(other), compiled)
    x = image(4)
    found = load_offline(path, number=1).run([x])["label"]
    np.testing.assert_allclose(found, np.exp(x) + 1, rtol=1e-5)
    third, x = load_offline(path, number=2, verify=True), image(*SHAPES[0])
    np.testing.assert_allclose(third.run([x])["label"], expected(x), rtol=1e-5)
    with pytest.raises(CheckpointError, match="there is no model 3"):
        load_offline(path, number=3)


def test_what_is_appended_to_stays_as_it_is(file: Path, compiled: Model, tmp_path: Path) -> None:
    path = tmp_path / "both.tm"
    path.write_bytes(file.read_bytes())
    double = mge.jit.trace(symbolic=True, capture_as_const=True)(lambda x: x + x)
    double(mge.tensor(image(4)))
    double.dump(str(path), append=True)
    assert [len(m.native) for m in read_models(path, allow_native=True)] == [1, 0]
    x = image(*SHAPES[0])
    np.testing.assert_allclose(load_offline(path).run([x])["label"], expected(x), rtol=1e-5)


def test_a_file_that_is_replaced_stays_the_one_that_was_opened(
    file: Path, model: Model, tmp_path: Path
) -> None:
    path = tmp_path / "net.tm"
    path.write_bytes(file.read_bytes())
    found = load_offline(path)
    write_models(path, [traced(F.exp, image(4))], "test")
    x = image(*SHAPES[0])
    np.testing.assert_allclose(found.run([x])["label"], expected(x), rtol=1e-5)
    assert found.graph.digest == model.graph.digest


# -- machines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["generic", "avx2", "avx512", "neon", "neon-sdot", "neon-dot"])
def test_ops_lowered_for_any_target_compute_the_same(model: Model, target: str) -> None:
    compiler = find_compiler(Options())
    assert isinstance(compiler, ShippingCompiler)
    program = Inspected(Stages(model.graph, crossing=compiler.toward(target)))
    x = image(*SHAPES[1])
    np.testing.assert_allclose(program.compile().run([x])[0], expected(x), rtol=1e-5)


def test_files_of_other_machines_are_refused_or_compiled(model: Model, tmp_path: Path) -> None:
    made = compile_offline(model, target=FOREIGN)
    path = written(tmp_path, made)
    here = shipped.machine_of(shipped.host_target())
    there = made.native[0].code.machine
    wanted = f"compiled for {there.architecture} linux, this process has {here.architecture}"
    with pytest.raises(LoadError, match=wanted) as refused:
        load_offline(path)
    assert "recompile=True" in refused.value.hint
    found, x = load_offline(path, recompile=True), image(*SHAPES[1])
    assert found.target == ""
    np.testing.assert_allclose(found.run([x])["label"], expected(x), rtol=1e-5)


def test_missing_instructions_are_named(
    file: Path, compiled: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled.native[0].code.machine.requires:
        pytest.skip("this processor has no optional instructions")
    monkeypatch.setattr(shipped, "flags", frozenset)
    target = compiled.native[0].code.machine.target
    with pytest.raises(LoadError, match=f"compiled for {target} with .*, this process has"):
        load_offline(file)


def with_machine(model: Model, **changes: Any) -> Model:
    [part] = model.native
    machine = replace(part.code.machine, **changes)
    return replace(model, native=(replace(part, code=replace(part.code, machine=machine)),))


def test_other_program_formats_are_refused(compiled: Model, tmp_path: Path) -> None:
    path = written(tmp_path, with_machine(compiled, format="of-another-day"))
    own = compiled.native[0].code.machine.format
    wanted = f"program format of-another-day, this process has program format {own}"
    with pytest.raises(LoadError, match=wanted) as refused:
        load_offline(path)
    assert "written by treadle" in refused.value.saw


def test_the_best_part_that_fits_is_taken(model: Model, tmp_path: Path) -> None:
    made, here = compile_offline(model), shipped.host_target().name
    for target in ("generic", FOREIGN, "generic"):
        made = compile_offline(made, target=target)
    found = [part.code.machine.target for part in made.native]
    assert sorted(found) == sorted({here, "generic", FOREIGN})
    assert load_offline(written(tmp_path, made)).target == here


def test_objects_are_kept_where_there_is_no_linker(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(linking, "linker", lambda architecture="": None)
        made = compile_offline(model)
        assert not made.native[0].code.library
        path, x = written(tmp_path, made), image(*SHAPES[1])
        by_llvm = load_offline(path).run([x])["label"]
    linked = load_offline(path).run([x])["label"]
    np.testing.assert_allclose(by_llvm, expected(x), rtol=1e-5)
    np.testing.assert_array_equal(by_llvm, linked)


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gears", "problem"),
    [
        ([{"image": (1, 3, 8, 8)}], "2 to 100"),
        ([{"image": (n, 3, 8, 8)} for n in range(1, 102)], "2 to 100"),
        ([{"image": (1, 3, 8, 8)}] * 2, "two of them are equal"),
        ([{}, {"image": SHAPES[1]}], "two of them are equal"),
        ([{"picture": (1,)}, {}], "no input 'picture'"),
        ([{"image": (-1, 3, 8, 8)}, {}], "extents that are numbers"),
    ],
)
def test_bad_gears(model: Model, gears: Any, problem: str) -> None:
    with pytest.raises(ShapeError, match=problem):
        compile_offline(model, gears)


def test_what_cannot_be_compiled_ahead(model: Model) -> None:
    spectrum = traced(lambda x: F.sort(x)[0], image(4, 4))
    with pytest.raises(CompileError, match="these ops need Python: sort"):
        compile_offline(spectrum, options=Options(force_fallback=("sort",)))
    with pytest.raises(CompileError, match="no target 'z80'"):
        compile_offline(model, target="z80")
    with pytest.raises(CompileError, match="cannot ship code"):
        compile_offline(model, options=Options(engines=("reference",)))


def changed(path: Path, target: Path, find: Callable[[bytes], int]) -> Path:
    content = bytearray(path.read_bytes())
    content[find(bytes(content))] ^= 1
    target.write_bytes(content)
    return target


def test_code_is_checked_before_it_is_opened(
    file: Path, compiled: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "open_native", lambda code: pytest.fail("code was opened"))
    [part] = compiled.native
    words = part.code.programs[0].words[:8].tobytes()
    for what in (bytes(part.code.library[:64]), words):
        bad = changed(file, tmp_path / "bad.tm", lambda c, what=what: c.index(what) + 9)
        with pytest.raises(CheckpointError, match="checksum of tensor"):
            load_offline(bad)


def test_weights_are_checked(file: Path, compiled: Model, tmp_path: Path) -> None:
    weights = compiled.native[0].weights[:64].tobytes()
    bad = changed(file, tmp_path / "bad.tm", lambda content: content.index(weights))
    model = load_offline(bad)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="checksum of the weights"):
            model.run([image(*SHAPES[0])])
    with pytest.raises(CheckpointError, match="checksum of tensor"):
        load_offline(bad, verify=True)
    load_offline(file, verify=True)


def test_newer_files_are_refused(
    compiled: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(native_part, "_WITHOUT_MANY", native_part.SCHEMA + 1)
        path = written(tmp_path, compiled)
    with pytest.raises(CheckpointError, match="schema 6, this Treadle reads 5") as refused:
        load_offline(path)
    assert "written by treadle" in refused.value.saw


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_offline(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with pytest.raises(CheckpointError, match="holds no model"):
        load_offline(tmp_path / "empty")
    with pytest.raises(OSError, match="missing"):
        load_offline(tmp_path / "missing")
