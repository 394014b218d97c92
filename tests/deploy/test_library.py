"""Models as shared libraries: built, linked into C and C++ programs, and run without Python."""

import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.networks import Net

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base.errors import CompileError
from treadle.deploy import compiler_command, library, write_library
from treadle.engine.package.models import Model
from treadle.jit.capture import capture
from treadle.jit.dump import Ends, argument_names, model_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "native"
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)


def traced(function: Any, *arrays: Any) -> Model:
    inputs = tuple(mge.tensor(a, dtype=a.dtype) for a in arrays)
    captured = capture(function, inputs, {}, "net")
    return model_of("net", captured, argument_names(inputs, {}), Ends(["image"], ["label"]))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """A folder with the library and its input, and what is to come out."""
    folder = tmp_path_factory.mktemp("library")
    network = Net()
    network.eval()
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    write_library(traced(network, x), folder, "net")
    x.tofile(folder / "x.bin")
    return folder, x, network(mge.tensor(x)).numpy()


def compiled(folder: Path, source: str, *flags: str) -> Path:
    command = compiler_command() if source.endswith(".c") else [shutil.which("c++") or "c++"]
    program = folder / Path(source).stem
    inputs = [str(EXAMPLES / source), "-I", str(folder), "-L", str(folder), "-lnet"]
    rest = [f"-Wl,-rpath,{folder}", "-o", str(program), "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, *inputs, *rest], check=True)
    return program


@pytest.mark.parametrize("threads", [1, 2])
def test_a_c_program_computes_the_same(built: tuple[Path, Any, Any], threads: int) -> None:
    folder, _, expected = built
    program = compiled(folder, "run.c")
    command = [program, folder / "x.bin", str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = np.array([float(line) for line in done.stdout.split()]).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_c_program_may_use_what_the_processor_has_for_bfloat16(tmp_path: Path) -> None:
    """The library asks for registers for matrices where its code has them."""
    rng = np.random.default_rng(3)
    weight = mge.Parameter(rng.standard_normal((48, 64)).astype(np.float32)).astype("bfloat16")

    def network(image: Any) -> Any:
        return F.linear(image.astype("bfloat16"), weight).astype("float32")

    x = rng.standard_normal((40, 64)).astype(np.float32)
    write_library(traced(network, x), tmp_path, "net")
    x.tofile(tmp_path / "x.bin")
    expected = network(mge.tensor(x)).numpy()
    done = subprocess.run(
        [compiled(tmp_path, "run.c"), tmp_path / "x.bin", "1"],
        check=True,
        capture_output=True,
        text=True,
    )
    found = np.array([float(line) for line in done.stdout.split()]).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_clones_run_at_the_same_time_and_give_all_memory_back(
    built: tuple[Path, Any, Any],
) -> None:
    folder = built[0]
    program = compiled(folder, "serve.cpp", "-pthread")
    done = subprocess.run([program, folder / "x.bin", "4"], capture_output=True, text=True)
    assert done.stdout == "0 of 200 results differ, 0 bytes are still held\n", done.stderr


MISUSE = r"""
#include <stdio.h>
#include <string.h>
#include "net.h"
static void *none(void *c, size_t n, size_t a) { (void)c; (void)n; (void)a; return NULL; }
static void drop(void *c, void *m, size_t n) { (void)c; (void)m; (void)n; }
int main(void) {
  net_model *model = NULL;
  const net_allocator empty = {none, drop, NULL};
  if (net_create(NULL, 1, NULL) != net_BAD_ARGUMENT) return 1;
  if (net_create(&model, -1, NULL) != net_BAD_ARGUMENT || !*net_error()) return 2;
  if (net_create(&model, 1, &empty) != net_NO_MEMORY || model) return 3;
  if (net_create(&model, 1, NULL) != net_OK) return 4;
  if (net_run(model) != net_BAD_ARGUMENT || !strstr(net_error(), "input")) return 5;
  if (net_set_input(model, 7, model) != net_BAD_ARGUMENT) return 6;
  if (net_set_output(model, 0, NULL) != net_BAD_ARGUMENT) return 7;
  if (net_input(1) || net_output(-1) || net_inputs() != 1 || net_outputs() != 1) return 8;
  if (strcmp(net_input(0)->dtype, "float32") || net_input(0)->shape[1] != 3) return 9;
  if (!strstr(net_about(), "treadle")) return 10;
  net_destroy(model);
  net_destroy(NULL);
  return 0;
}
"""


def test_misuse_is_a_status_and_a_message(built: tuple[Path, Any, Any], tmp_path: Path) -> None:
    folder = built[0]
    (tmp_path / "misuse.c").write_text(MISUSE, encoding="utf-8")
    program = tmp_path / "misuse"
    inputs = ["misuse.c", "-I", str(folder), "-L", str(folder), "-lnet", f"-Wl,-rpath,{folder}"]
    subprocess.run([*compiler_command(), *inputs, "-o", str(program)], cwd=tmp_path, check=True)
    assert subprocess.run([program]).returncode == 0


def test_only_functions_of_the_header_are_seen(built: tuple[Path, Any, Any]) -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm to list symbols with")
    folder = built[0]
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "libnet.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert {n for n in names if not n.startswith("net_")} == set()
    header = (folder / "net.h").read_text(encoding="utf-8")
    assert all(f"{n}(" in header for n in names)


_ASKED = """
#include <stdint.h>
#include <stdio.h>
#include <cpuid.h>
HAS
int main(void) { return printf("ANSWERS" VALUES) < 0; }
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="cpuid is of x86-64")
def test_the_processor_is_asked_for_what_the_system_lists(tmp_path: Path) -> None:
    model = (Path(library.__file__).parent / "model.c").read_text(encoding="utf-8")
    [function] = re.findall(r"static inline int has\(.*?\n}", model, re.DOTALL)
    values = "".join(f", has({', '.join(map(str, row))})" for row in library._CPUID.values())
    text = _ASKED.replace("HAS", function).replace("VALUES", values)
    (tmp_path / "asks.c").write_text(text.replace("ANSWERS", "%d " * len(library._CPUID)))
    subprocess.run([*compiler_command(), "asks.c", "-o", "asks"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "asks"], check=True, capture_output=True, text=True)
    found = {n for n, x in zip(library._CPUID, done.stdout.split(), strict=True) if x == "1"}
    listed = re.search(r"^flags.*", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert listed
    assert found == set(listed.group().split()) & set(library._CPUID)


def test_a_processor_that_lacks_instructions_is_refused(
    built: tuple[Path, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, x, _ = built
    monkeypatch.setitem(library._CPUID, "fma", (7, 0, 3, 31, 1 << 40))
    network = Net()
    network.eval()
    write_library(traced(network, x), tmp_path, "net", target="avx2")
    x.tofile(tmp_path / "x.bin")
    command = [compiled(tmp_path, "run.c"), tmp_path / "x.bin", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode
    assert "the processor lacks avx2" in done.stdout + done.stderr


_ON_A_SMALL_STACK = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
static net_model *model;
static void *run(void *unused) {
  (void)unused;
  return net_run(model) ? (void *)net_error() : NULL;
}
int main(void) {
  pthread_attr_t small;
  pthread_t thread;
  void *said;
  if (net_create(&model, 1, NULL)) return puts(net_error()), 1;
  net_set_input(model, 0, calloc(1, net_input(0)->nbytes));
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 << 10);
  if (pthread_create(&thread, &small, run, NULL) || pthread_join(thread, &said)) return 2;
  if (said) return puts(said), 3;
  return printf("%g\\n", ((const float *)net_get_output(model, 0))[0]) < 0;
}
"""


def test_a_caller_with_a_small_stack_computes(tmp_path: Path) -> None:
    mge.random.seed(0)
    conv = M.Conv2d(64, 64, 3, padding=1)
    x = np.zeros((1, 64, 112, 112), np.float32)
    write_library(traced(lambda image: conv(image) + 3, x), tmp_path, "net")
    (tmp_path / "small.c").write_text(_ON_A_SMALL_STACK)
    command = [*compiler_command(), "small.c", "-L.", "-lnet", "-Wl,-rpath,.", "-lpthread"]
    subprocess.run([*command, "-o", "small"], cwd=tmp_path, check=True)
    done = subprocess.run(["./small"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(3 + float(conv.bias.numpy().ravel()[0]), rel=1e-5)


def test_a_system_that_there_is_not_is_named(tmp_path: Path) -> None:
    model = traced(lambda x: x + 1, np.ones(3, np.float32))
    with pytest.raises(CompileError, match="no system 'amiga'") as caught:
        write_library(model, tmp_path, "net", system="amiga")
    assert "windows" in str(caught.value)


def test_what_needs_python_is_refused(tmp_path: Path) -> None:
    matrix = np.eye(3, dtype=np.float32)
    with pytest.raises(CompileError, match="mat_inv"):
        write_library(traced(F.matinv, matrix), tmp_path, "net")
    with pytest.raises(CompileError, match="not a C identifier"):
        write_library(traced(F.relu, matrix), tmp_path, "my-net")


def test_a_compiler_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(CompileError, match="false fails"):
        write_library(traced(F.relu, np.ones(3, np.float32)), tmp_path, "net")
