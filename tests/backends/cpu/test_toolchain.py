"""From text to addresses: caching, linking, loading, several processes."""

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.backends.codegen.target import AVX512, NEON
from treadle.backends.cpu import building, linking
from treadle.backends.cpu.compile_processes import CompileProcesses
from treadle.backends.cpu.host import host_target
from treadle.backends.cpu.llvm_compile import translate
from treadle.backends.cpu.toolchain import LinkedObjects, SharedLibrary, Toolchain, opened
from treadle.backends.object_cache import ObjectCache
from treadle.base.errors import CompileError


def text(number: int) -> str:
    return f"define i64 @number{number}() {{ ret i64 {number} }}"


def texts(*numbers: int) -> dict[str, Callable[[], str]]:
    return {f"number{n}": lambda n=n: text(n) for n in numbers}  # type: ignore[misc]


def call(address: int) -> int:
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64)(address)()
    return result


def fresh(folder: Path) -> Toolchain:
    return Toolchain(host_target(), ObjectCache(folder / "objects"))


def values(chain: Toolchain, *numbers: int) -> list[int]:
    libraries = chain.load(texts(*numbers))
    found = {s: a for library in libraries for s, a in library.addresses.items()}
    return [call(found[f"number{n}"]) for n in numbers]


@pytest.fixture(params=["linker", "no linker"])
def _any_linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no linker":
        monkeypatch.setattr(linking, "linker", lambda architecture="": None)


@pytest.mark.usefixtures("_any_linker")
def test_code_is_compiled_once(tmp_path: Path) -> None:
    chain = fresh(tmp_path)
    assert values(chain, 1, 2) == [1, 2]
    assert chain.compiled == 2
    assert values(chain, 2, 3) == [2, 3]
    assert chain.compiled == 3
    warm = fresh(tmp_path)
    assert values(warm, 1, 2) == [1, 2]
    assert values(warm, 3, 1) == [3, 1]
    assert warm.compiled == 0


def test_what_is_loaded_is_shared_until_nobody_needs_it(tmp_path: Path) -> None:
    chain = fresh(tmp_path)
    first = chain.load(texts(1, 2))
    assert chain.load(texts(2)) == first
    assert len(chain.load(texts(2, 1))) == 1
    assert chain.built == 1
    del first
    gc.collect()
    again = chain.load(texts(1, 2))
    assert chain.built == 1  # from the cache
    assert isinstance(again[0], SharedLibrary)


@pytest.mark.usefixtures("_any_linker")
@pytest.mark.parametrize("damage", ["truncate", "flip", "foreign"])
def test_damaged_entries_are_rebuilt(tmp_path: Path, damage: str) -> None:
    assert values(fresh(tmp_path), 1, 2) == [1, 2]
    for path in (tmp_path / "objects").iterdir():
        content = path.read_bytes()
        changed = content[: len(content) // 2] if damage == "truncate" else content[:-1] + b"?"
        path.write_bytes(b"\x7fELF but not really" if damage == "foreign" else changed)
    chain = fresh(tmp_path)
    assert values(chain, 1, 2) == [1, 2]
    assert chain.compiled == 2
    assert values(fresh(tmp_path), 1, 2) == [1, 2]


@pytest.mark.usefixtures("_any_linker")
def test_without_a_cache_everything_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "objects").write_text("in the way")
    chain = fresh(tmp_path)
    assert values(chain, 1, 2) == [1, 2]
    assert values(chain, 3) == [3]
    assert capsys.readouterr().err.count("compiled anew") == 1


@pytest.mark.skipif(linking.linker() is None, reason="there is no linker")
def test_libraries_in_memory_are_not_taken_for_one_another() -> None:
    made = []
    for number in (1, 2, 3):  # all are open at the same time
        image = linking.shared_library([translate(text(number), "", "", "")])
        assert image is not None
        made.append(opened(image, [f"number{number}"]))
    assert [call(x.addresses[f"number{i}"]) for i, x in enumerate(made, start=1)] == [1, 2, 3]
    numbers = set(os.listdir("/proc/self/fd"))
    del made
    gc.collect()
    assert len(set(os.listdir("/proc/self/fd"))) <= len(numbers) - 3


@pytest.mark.skipif(linking.linker() is None, reason="there is no linker")
def test_constants_share_the_pages_of_code() -> None:
    """A masked load without any lane faults no page in, and takes 300 cycles from one that is not
    there: 25 times the time of `isnan` where nothing is NaN.
    """
    constants = "@numbers = constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]\n"
    image = linking.shared_library([translate(constants + text(1), "", "", "")])
    assert image is not None
    at, size, count = (
        int.from_bytes(image[p : p + n], "little") for p, n in ((32, 8), (54, 2), (56, 2))
    )
    headers = [image[at + i * size : at + (i + 1) * size] for i in range(count)]
    loaded = [int.from_bytes(h[4:8], "little") for h in headers if h[:4] == bytes([1, 0, 0, 0])]
    read_only = 4
    assert loaded
    assert read_only not in loaded


def test_a_damaged_library_that_cannot_be_replaced_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = fresh(tmp_path / "planted")
    planted.load({"number1": lambda: text(1).replace("i64 1", "i64 666")})
    values(fresh(tmp_path), 1)
    for name in (p.name for p in (tmp_path / "objects").iterdir()):
        content = (tmp_path / "planted" / "objects" / name).read_bytes()
        (tmp_path / "objects" / name).write_bytes(content[:-1])
    chain = fresh(tmp_path)
    monkeypatch.setattr(chain.cache, "put", lambda key, data: False)
    assert values(chain, 1) == [1]


def test_a_linker_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "linker", lambda architecture="": "/bin/false")
    chain = fresh(tmp_path)
    libraries = chain.load(texts(4))
    assert isinstance(libraries[0], LinkedObjects)
    assert call(libraries[0].addresses["number4"]) == 4


def test_text_that_llvm_refuses(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="LLVM refuses generated code"):
        fresh(tmp_path).load({"broken": lambda: "define i64 @broken() { ret i32 0 }"})


def test_other_targets_compile_here(tmp_path: Path) -> None:
    vectors = """
        define <16 x float> @twice(<16 x float> %x) {
          %y = fadd <16 x float> %x, %x
          ret <16 x float> %y
        }"""
    cache = ObjectCache(tmp_path / "objects")
    assert "zmm0" in Toolchain(AVX512, cache).assembly(vectors)
    assert "v0.4s" in Toolchain(NEON, cache).assembly(vectors)


def test_keys_depend_on_the_target(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "objects")
    assert Toolchain(AVX512, cache).fingerprint != Toolchain(NEON, cache).fingerprint


def test_helper_processes_make_the_same_objects() -> None:
    target = host_target()
    names = (target.triple, target.cpu, ",".join(target.features))
    jobs = [(f"number{n}", text(n)) for n in range(20)] + [("broken", "define")]
    with CompileProcesses(len(jobs), names, helpers=2) as helpers:
        helpers.give(jobs)
        made = helpers.results()
    assert helpers.next() is None
    assert set(made) == {name for name, _ in jobs if name != "broken"}
    assert made["number7"] == translate(text(7), *names)


def test_helpers_that_cannot_start_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    jobs = [(f"number{n}", text(n)) for n in range(3)]
    with CompileProcesses(len(jobs), ("", "", ""), helpers=1) as helpers:
        helpers.give(jobs)
        made = helpers.results()
        left = []
        while (job := helpers.next()) is not None:
            left.append(job)
    # The helper may have taken one before it was found dead: the caller compiles what is missing.
    assert made == {}
    assert len(left) >= 2


def test_many_kernels_are_compiled_by_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        building,
        "CompileProcesses",
        lambda expected, target: CompileProcesses(expected, target, helpers=2),
    )
    chain = fresh(tmp_path)
    assert values(chain, *range(40)) == list(range(40))
    assert chain.compiled == 40


PROCESS = """
    import sys
    from treadle.backends.cpu.native import toolchain, runtime
    from tests.backends.cpu.hand_written import executable, addresses
    from treadle.backends.program import Address, Run
    import numpy as np
    x = np.ones(100, np.int64)
    program = executable([Run("hand_affine", (Address(0), 2), 100)], 1)
    program.run(addresses(x))
    assert (x == 2 + np.arange(100)).all()
    print(toolchain().compiled, int("llvmlite.binding" in sys.modules))
"""


def run_process(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROCESS)],
        env={**os.environ, "TREADLE_CACHE_DIR": str(folder), "PYTHONPATH": os.getcwd()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(process: subprocess.Popen[str]) -> tuple[list[int], str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return [int(word) for word in out.split()], err


def test_two_processes_at_once_then_a_warm_start(tmp_path: Path) -> None:
    both = [run_process(tmp_path) for _ in range(2)]
    compiled = 0
    for process in both:
        (count, _), errors = answers(process)
        compiled += count
        assert errors == ""
    assert 2 <= compiled <= 4
    # Nothing is compiled and, where there is a linker, LLVM is not even imported.
    (compiled, imported), _ = answers(run_process(tmp_path))
    assert compiled == 0
    assert imported == int(linking.linker() is None)


def test_a_read_only_cache_is_read(tmp_path: Path) -> None:
    answers(run_process(tmp_path))
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    (tmp_path / "objects").chmod(0o500)
    try:
        (compiled, _), err = answers(run_process(tmp_path))
    finally:
        (tmp_path / "objects").chmod(0o700)
    assert (compiled, err) == (0, "")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
