"""Libraries for ranges of extents: one C program runs them all; what is refused, and memory."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.networks import image
from tests.deploy.test_ranged import RANGES, Net, Recurrent, dumped, evaluated, given

import treadle as mge
from treadle.base.errors import ShapeError
from treadle.cli import main
from treadle.deploy import compiler_command, write_library

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
# Reads cases of two extents and two inputs, and writes two outputs each; memory is counted.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"
static long held, refuse;
static void *take(void *c, size_t n, size_t a) {
  (void)c;
  if (refuse) return NULL;
  held += (long)n;
  return aligned_alloc(a, (n + a - 1) / a * a);
}
static void drop(void *c, void *m, size_t n) { (void)c; held -= (long)n; free(m); }
#define MUST(x) if (!(x)) return fprintf(stderr, "%d: %s\n", __LINE__, net_error()), 1
int main(void) {
  const net_allocator counted = {take, drop, NULL};
  net_model *model, *other;
  int64_t extents[2], wrong[2] = {3, 16}, small[2] = {1, 2}, large[2] = {9, 15};
  MUST(net_create(&model, 2, &counted) == net_OK);
  MUST(net_extents() == 2 && !strcmp(net_extent_of(1)->name, "image_1") && !net_extent_of(2));
  MUST(net_extent_of(0)->low == 0 && net_extent_of(0)->high == 9);
  MUST(net_input(0)->shape[0] == -1 && net_input(0)->shape[2] == 6 && net_input(0)->nbytes == 0);
  MUST(!net_input_at(model, 0) && !net_get_output(model, 0));
  MUST(net_run(model) == net_BAD_ARGUMENT && strstr(net_error(), "set_extents"));
  MUST(net_set_extents(model, extents, 1) == net_BAD_ARGUMENT);
  MUST(net_set_extents(model, wrong, 2) == net_BAD_EXTENT);
  MUST(strstr(net_error(), "the extent image_1 is 16, and the library is for 1 to 15"));
  MUST(net_set_extents(model, small, 2) == net_OK && net_input_at(model, 1)->shape[0] == 2);
  refuse = 1;
  MUST(net_set_extents(model, large, 2) == net_NO_MEMORY);
  MUST(strstr(net_error(), "image_0 = 9, image_1 = 15"));
  MUST(net_input_at(model, 1)->shape[0] == 2);
  MUST(net_clone(model, &other) == net_NO_MEMORY);
  refuse = 0;
  MUST(net_clone(model, &other) == net_OK && !net_output_at(other, 0));
  for (int turn = 0; fread(extents, sizeof extents, 1, stdin) == 1; turn++) {
    net_model *one = turn % 2 ? model : other;
    void *inputs[2];
    MUST(net_set_extents(one, extents, 2) == net_OK);
    for (int i = 0; i < 2; i++) {
      size_t nbytes = net_input_at(one, i)->nbytes;
      inputs[i] = malloc(nbytes ? nbytes : 1);
      MUST(fread(inputs[i], 1, nbytes, stdin) == nbytes);
      MUST(net_set_input(one, i, inputs[i]) == net_OK);
    }
    MUST(net_run(one) == net_OK);
    for (int i = 0; i < 2; i++) {
      size_t nbytes = net_output_at(one, i)->nbytes;
      MUST(fwrite(net_get_output(one, i), 1, nbytes, stdout) == nbytes);
    }
    ((int32_t *)inputs[1])[0] = 11;
    int empty = extents[0] == 0;
    int status = net_run(one);
    MUST(empty || (status == net_BAD_INDEX && strstr(net_error(), "11")));
    free(inputs[0]);
    free(inputs[1]);
  }
  net_destroy(model);
  net_destroy(other);
  return held != 0;
}
"""


def program(folder: Path) -> Path:
    (folder / "all.c").write_text(PROGRAM, encoding="utf-8")
    flags = ["-I", str(folder), "-L", str(folder), "-lnet", f"-Wl,-rpath,{folder}"]
    strict = ["-Wall", "-Wextra", "-Werror", "-o", "all"]
    command = [*compiler_command(), "all.c", *flags, *strict]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "all"


@pytest.mark.parametrize("kind", [Net, Recurrent])
def test_one_library_serves_all_extents(kind: type[Net], tmp_path: Path) -> None:
    mge.random.seed(0)
    net = evaluated(kind())
    made = write_library(
        dumped(net, tmp_path / "net.mge", **given(3, 7)), tmp_path, "net", ranges=RANGES
    )
    assert made.scratch > 0
    cases = [(n, length) for n in (3, 0, 1, 2, 9, 7) for length in (15, 1, 2, 7)]
    fed, wanted = b"", []
    for n, length in cases:
        arrays = given(n, length)
        fed += np.array([n, length], np.int64).tobytes()
        fed += b"".join(a.tobytes() for a in arrays.values())
        results: Any = net(*(mge.tensor(a, dtype=a.dtype) for a in arrays.values()))
        wanted += [y.numpy().reshape(-1) for y in results]
    done = subprocess.run([program(tmp_path)], input=fed, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.frombuffer(done.stdout, np.float32)
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-4, atol=1e-5)


def test_the_command_takes_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = dumped(lambda x: x * 2 + 1, tmp_path / "net.mge", x=image(2, 3))
    asked = ["compile", str(tmp_path / "net.mge"), "--emit", "library", "--name", "net"]
    assert main([*asked, "-o", str(tmp_path / "made"), "--shape", "x=1..9,3"]) == 0
    assert "ranges   x_0 1 to 9" in capsys.readouterr().out
    assert "net_set_extents" in (tmp_path / "made" / "net.h").read_text(encoding="utf-8")
    with pytest.raises(ShapeError, match="has 2 axes"):
        write_library(model, tmp_path, "net", ranges={"x": [(1, 2)]})
