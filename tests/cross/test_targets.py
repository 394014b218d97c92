"""Every op that is compiled, in a library for another processor or system, run by an emulator.

Installed by `make setup-cross`; run by `make test-cross`.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular
from tests.engine.test_every_op import NAMES
from tests.graph.samples import with_graphs

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import quantization as Q
from treadle.backends.program import ShippingCompiler
from treadle.base.blocks.panels import LAYOUTS
from treadle.base.dtype import as_dtype, float32
from treadle.base.errors import TreadleError
from treadle.base.types import TensorType
from treadle.deploy import write_library
from treadle.engine.devices.placement import find_compiler
from treadle.engine.options import Options
from treadle.engine.package.models import Model
from treadle.engine.pipeline import Stages
from treadle.graph.builder import trace_body
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of
from treadle.ops import REGISTRY
from treadle.ops.block_matmul import BlockMatmul
from treadle.ops.op import Sample, as_tuple

Array = np.ndarray[Any, Any]
PLAIN = Options(level=0)
"""Every op is a kernel of its own, as it stands."""
_EMULATED = (["aarch64-linux-gnu-gcc"], ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"])
MACHINES = {
    "neon-dot": _EMULATED,
    "neon-sdot": _EMULATED,
    "neon": _EMULATED,
    "generic": (["cc"], []),
}
"""Targets: a C compiler for them, and what runs programs."""
_ZIG = [sys.executable, "-m", "ziglang", "cc", "-target"]
SYSTEMS = {
    **{name: (name, "", *how) for name, how in MACHINES.items()},
    "musl": ("avx2", "linux-musl", [*_ZIG, "x86_64-linux-musl"], ["/lib/ld-musl-x86_64.so.1"]),
    "windows": ("avx2", "windows", [*_ZIG, "x86_64-windows-gnu"], ["wine"]),
}
"""The same with a name: target, system, compiler and what runs programs."""
_BUILT = Path(__file__).parents[2] / "build"
pytestmark = pytest.mark.cross


@cache
def wine() -> dict[str, str]:
    """Wine's environment, a folder of its own per worker and a server that stays to the end.

    Two programs that make the folder, or start its server while another goes, stop with an error.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    folder = _BUILT / f"wine-{worker}"
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"WINEPREFIX": str(folder), "WINEDEBUG": "-all"}
    quiet: Any = {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["wineserver", "--persistent=1200"], check=False, **quiet)
    atexit.register(subprocess.run, ["wineserver", "--kill"], check=False, **quiet)
    subprocess.run(["wineboot", "--init"], check=True, **quiet)
    return env


def traced(cases: list[tuple[Sample, tuple[Array, ...]]]) -> Model:
    """All of them in one graph."""
    types = [TensorType(as_dtype(a.dtype), a.shape) for _, arrays in cases for a in arrays]

    def body(*values: Any) -> tuple[Any, ...]:
        rest, made = list(values), []
        for sample, arrays in cases:
            given, rest = rest[: len(arrays)], rest[len(arrays) :]
            made += given[0].builder.apply(with_graphs(sample.op), given)
        return tuple(made)

    graph = trace_body(body, types, "ops")
    inputs = tuple(f"x{i}" for i in range(len(graph.inputs)))
    return Model(graph, inputs, tuple(f"y{i}" for i in range(len(graph.outputs))))


def compiled(target: str) -> Iterator[tuple[Sample, tuple[Array, ...]]]:
    """The samples of every op that needs no Python, with their arrays."""
    host = find_compiler(PLAIN)
    assert isinstance(host, ShippingCompiler)
    compiler = host.toward(target)
    for name in NAMES:
        for sample in REGISTRY[name].samples():
            kinds = sample.element_types()
            arrays = sample.arrays(float32 if float32 in kinds else kinds[0])
            if not arrays:
                continue
            try:
                graph = traced([(sample, arrays)]).graph
                plan = Stages(graph, options=PLAIN, crossing=compiler).planned.plan
            except TreadleError:
                continue  # what data decide, or a part of it, is no program
            if not plan.host and not plan.updates:
                yield sample, arrays


def real(array: Array) -> Array:
    """Real and imaginary parts of complex numbers, other arrays as they are."""
    return np.stack([array.real, array.imag]) if array.dtype.kind == "c" else array


def outputs(model: Model, inputs: list[Array], name: str, folder: Path, options: Options) -> bytes:
    """What the library for a target gives, in an emulator; equal for any number of threads."""
    target, system, compiler, emulator = SYSTEMS[name]
    for program in (compiler[0], *emulator[:1]):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}; see make setup-cross")
    write_library(model, folder, "ops", options, target, system=system)
    source, run = Path(__file__).with_name("all.c"), folder / "run.exe"
    flags = ["-L", str(folder), "-lops", f"-Wl,-rpath,{folder}"]
    small = "-Wl,--stack,1048576"  # as Microsoft's linker has it; kernels may need more
    linked = [str(folder / "ops.lib"), small] if system == "windows" else flags
    includes = ["-O2", "-I", str(folder)]  # Zig adds checks where nothing is optimized
    subprocess.run([*compiler, *includes, str(source), *linked, "-o", str(run)], check=True)
    (folder / "in").write_bytes(b"".join(a.tobytes() for a in inputs))
    found = []
    for threads in ("1", "2"):
        command = [*emulator, str(run), "in", f"out{threads}", threads]
        env = wine() if emulator == ["wine"] else None
        subprocess.run(command, check=True, cwd=folder, env=env)
        found.append((folder / f"out{threads}").read_bytes())
    assert found[0] == found[1]
    return found[0]


def check_results(cases: Sequence[tuple[Sample, list[Array]]], found: bytes, target: str) -> None:
    """The bytes of all results, one behind the other, are NumPy's."""
    at, seen = 0, set()
    for sample, given in cases:
        with np.errstate(all="ignore"):
            wanted = as_tuple(sample.op.reference(*given))
        for expected in map(np.asarray, wanted):
            raw = found[at : at + expected.nbytes]
            got = np.frombuffer(raw, expected.dtype).reshape(expected.shape)
            irregular.check(real(got), real(expected), f"{target}: {sample}", exact=False)
            at += expected.nbytes
        seen.add(sample.op.name)
    assert at == len(found)
    assert len(seen) > 120


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.timeout(1200)
def test_every_op_gives_numpys_results(name: str, tmp_path: Path) -> None:
    cases = list(compiled(SYSTEMS[name][0]))
    arrays = [a for _, given in cases for a in given]
    found = outputs(traced(cases), arrays, name, tmp_path, PLAIN)
    check_results(cases, found, name)


class Maps(M.Module):
    """Convolutions of every kind: strided, depthwise, 1x1, 3x3 in tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Conv2d(3, 32, 3, stride=2, padding=1)
        self.depthwise = M.Conv2d(32, 32, 3, padding=1, groups=32)
        self.mix = M.Conv2d(32, 64, 1)
        self.deep = M.Conv2d(64, 64, 3, padding=1)
        self.head = M.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu6(self.mix(F.relu6(self.depthwise(F.relu6(self.stem(x))))))
        x = F.max_pool2d(F.relu(self.deep(x)), 2)
        return F.softmax(self.head(F.mean(x, axis=(2, 3))), axis=1)


class Tokens(M.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = M.MultiHeadAttention(64, 4)
        self.norm = M.LayerNorm(64)
        self.wide, self.narrow = M.Linear(64, 256), M.Linear(256, 64)

    def forward(self, x: Any) -> Any:
        x = self.norm(x + self.attention(x, x, x)[0])
        return x + self.narrow(F.gelu(self.wide(x)))


class FewBits(M.Module):
    """Products of bfloat16 and of bytes, alone and in convolutions, with extents that are odd."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(19, 35, 3, padding=1)
        self.first, self.second = M.Linear(101, 67), M.Linear(67, 45)
        self.dynamic = Q.quantize_dynamic(M.Linear(45, 37))

    def forward(self, x: Any) -> Any:
        weight, bias = (v.astype("bfloat16") for v in (self.conv.weight, self.conv.bias))
        maps = F.conv2d(x.reshape((1, 19, 17, 17)).astype("bfloat16"), weight, bias, padding=1)
        x = maps.astype("float32").reshape((-1,))[: 99 * 101].reshape((99, 101))
        x = F.matmul(x.astype("bfloat16"), self.first.weight.astype("bfloat16").T)
        x = F.linear(x, self.second.weight.astype("bfloat16"), self.second.bias.astype("bfloat16"))
        return self.dynamic(x.astype("float32"))


@pytest.mark.parametrize("target", SYSTEMS)
def test_few_bits_by_the_instructions_that_there_are(target: str, tmp_path: Path) -> None:
    mge.random.seed(1)
    module = FewBits()
    module.eval()
    x = np.random.default_rng(0).standard_normal((19 * 17 * 17,), np.float32)
    given = (mge.tensor(x),)
    captured = capture(module, given, {}, "net")
    model = model_of("net", captured, argument_names(given, {}), Ends(["x"], ["y"]))
    found = outputs(model, [x], target, tmp_path, Options())
    wanted = module(*given).numpy()
    got = np.frombuffer(found, np.float32).reshape(wanted.shape)
    # Four roundings to 8 bits, of which steps of other sums may take any to a neighbor.
    assert abs(got - wanted).max() < 0.02 * abs(wanted).max()
    if target.startswith("neon"):
        command = ["aarch64-linux-gnu-objdump", "-d", str(tmp_path / "libops.so")]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name in ("bfdot", "[us]{2}dot"):
            assert bool(re.search(rf"\t{name}\t", text)) == (target == "neon-dot")


@pytest.mark.parametrize("target", MACHINES)
def test_weights_in_blocks_of_every_format(target: str, tmp_path: Path) -> None:
    """One row and a tile that is not full, in both roundings."""
    rng, cases = np.random.default_rng(5), []
    for rows, kind in ((1, "int16"), (5, "int8"), (3, "int16")):
        for name, layout in LAYOUTS.items():
            width = 512 // layout.elements * layout.block
            panels = rng.integers(0, 256, (3, width), dtype=np.uint8)
            headers = panels.reshape(3, -1, layout.block)[..., : layout.header]
            scales = rng.uniform(1e-4, 1e-3, (*headers.shape[:2], layout.header // 2))
            headers[...] = scales.astype(np.float16).view(np.uint8)
            x = rng.standard_normal((rows, 512)).astype(np.float32)
            cases.append((Sample(BlockMatmul(name, 37, kind), ()), (x, panels)))
    arrays = [a for _, given in cases for a in given]
    found = outputs(traced(cases), arrays, target, tmp_path, PLAIN)
    at = 0
    for sample, given in cases:
        wanted = sample.op.reference(*given)
        got = np.frombuffer(found, np.float32, wanted.size, at).reshape(wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * abs(wanted).max())
        at += wanted.nbytes
    assert at == len(found)
    if target in ("neon-dot", "neon-sdot"):
        command = ["aarch64-linux-gnu-objdump", "-d", str(tmp_path / "libops.so")]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        name = "usdot" if target == "neon-dot" else "sdot"
        assert len(re.findall(rf"\t{name}\t", text)) > 1000


@pytest.mark.parametrize("target", SYSTEMS)
@pytest.mark.parametrize(("network", "shape"), [(Maps, (2, 3, 64, 64)), (Tokens, (2, 33, 64))])
def test_fused_programs_give_the_results_of_eager_code(
    target: str, network: type[M.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    module = network()
    module.eval()
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    given = (mge.tensor(x),)
    captured = capture(module, given, {}, "net")
    model = model_of("net", captured, argument_names(given, {}), Ends(["x"], ["y"]))
    found = outputs(model, [x], target, tmp_path, Options())
    wanted = module(*given).numpy()
    got = np.frombuffer(found, np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
