"""Models some of whose extents data decide, in files and in C libraries: masks and suppression."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.damage.mutate import places, resealed
from tests.deploy.test_ranged import dumped, evaluated

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.base import dtype as dt
from treadle.base.errors import CheckpointError, LoadError, ShapeError, TreadleError
from treadle.base.files import sealed
from treadle.base.files.container import read_header
from treadle.base.files.source import open_source
from treadle.base.guards import recording_guards
from treadle.base.symbol import equal
from treadle.base.types import TensorType
from treadle.deploy import compile_offline, compiler_command, load_offline, write_library
from treadle.engine.package.models import Model, Runner, write_models
from treadle.graph.builder import trace_body
from treadle.ops.elementwise import Add, Neg
from treadle.ops.gather import Nonzero
from treadle.ops.logic import Greater, Less

with_c = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
# Reads cases of one extent (none in a library without any) and one input; writes for each output
# its shape and itself. Memory is counted.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "net.h"
static long held, refuse;
static void *take(void *c, size_t n, size_t a) {
  (void)c;
  if (refuse && n > 1 << 16) return NULL;
  held += (long)n;
  return aligned_alloc(a, (n + a - 1) / a * a);
}
static void drop(void *c, void *m, size_t n) { (void)c; held -= (long)n; free(m); }
#define MUST(x) if (!(x)) return fprintf(stderr, "%d: %s\n", __LINE__, net_error()), 1
int main(void) {
  const net_allocator counted = {take, drop, NULL};
  net_model *model, *other;
  int64_t n;
  MUST(net_create(&model, 2, &counted) == net_OK && net_clone(model, &other) == net_OK);
  MUST(net_output(0)->shape[0] == -1 && !net_output(0)->nbytes && !net_output_at(model, 0));
  MUST(!net_get_output(model, 0) && net_set_output(model, 0, &n) == net_BAD_ARGUMENT);
  MUST(strstr(net_error(), "data decide"));
  for (int turn = 0; fread(&n, sizeof n, 1, stdin) == 1; turn++) {
    net_model *one = turn % 2 ? model : other;
    MUST(!net_extents() || net_set_extents(one, &n, 1) == net_OK);
    MUST(!net_extents() || !net_get_output(one, 0));
    size_t nbytes = net_input_at(one, 0)->nbytes;
    void *input = malloc(nbytes ? nbytes : 1);
    MUST(fread(input, 1, nbytes, stdin) == nbytes);
    MUST(net_set_input(one, 0, input) == net_OK && net_run(one) == net_OK);
    for (int i = 0; i < net_outputs(); i++) {
      const net_tensor *end = net_output_at(one, i);
      MUST(fwrite(end->shape, sizeof(int64_t), (size_t)end->ndim, stdout) == (size_t)end->ndim);
      MUST(fwrite(net_get_output(one, i), 1, end->nbytes, stdout) == end->nbytes);
    }
    free(input);
  }
  net_destroy(model);
  net_destroy(other);
  return held != 0;
}
"""


class Selected(M.Module):
    """A product of rows that a mask selects, another mask, positions, and what goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = M.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        y = x[x.sum(axis=1) > 0]
        z = self.fc(F.relu(y))
        w = z[z[:, 0] > 0]
        twice = F.concat([y, y], axis=0)
        return w * 2, z, x, y.sum(axis=0), twice, F.non_zero(twice[:, 0] > 1)


class Detector(M.Module):
    """Boxes above a score, of which those that overlap are left out, with their scores."""

    def forward(self, x: Any) -> Any:
        corner, size, scores = x[:, :2], F.abs(x[:, 2:4]) + 0.5, F.sigmoid(x[:, 4])
        boxes = F.concat([corner, corner + size], axis=1)
        likely = scores > 0.4
        boxes, scores = boxes[likely], scores[likely]
        kept = F.vision.nms(boxes, scores, 0.3)
        return boxes[kept], scores[kept], kept


class Classes(M.Module):
    """Boxes of three classes, each with a mask of its own, and what is left of all of them."""

    def forward(self, x: Any) -> Any:
        each = [x[x[:, c] > 0.3] for c in range(3)]
        boxes = F.concat([F.concat([y[:, :2], y[:, :2] + F.abs(y[:, 2:4])], 1) for y in each], 0)
        scores = F.concat([F.sigmoid(y[:, c]) for c, y in enumerate(each)], 0)
        kept = F.vision.nms(boxes, scores, 0.5)
        return boxes[kept], scores[kept], kept, *(y.sum(axis=0) for y in each)


KINDS: dict[str, tuple[type[M.Module], int]] = {
    "mask": (Selected, 4),
    "nms": (Detector, 5),
    "classes": (Classes, 4),
}


def rows(n: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    g = np.random.default_rng(seed)
    shift = (-9, 0, 0, 0.5, 9)[seed % 5]  # Data decide for none, some or all.
    return (g.standard_normal((n, width)) + shift).astype(np.float32)


def cases(is_wide: bool, width: int) -> list[np.ndarray[Any, Any]]:
    sizes = (0, 1, 2, 3, 17, 40) if is_wide else (24,)
    return [rows(n, width, seed) for n in sizes for seed in range(10 if not is_wide else 5)]


def eager(net: Any, x: Any) -> list[np.ndarray[Any, Any]]:
    made: Any = net(mge.tensor(x))
    return [y.numpy() for y in made]


def holds(found: Any, wanted: list[np.ndarray[Any, Any]]) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def library_gives(
    folder: Path,
    program: str,
    given: list[np.ndarray[Any, Any]],
    wanted: Callable[[Any], list[np.ndarray[Any, Any]]],
) -> None:
    """The library in a folder, called by a C program for each input, gives what is wanted."""
    (folder / "all.c").write_text(program, encoding="utf-8")
    flags = ["-I", ".", "-L", ".", "-lnet", f"-Wl,-rpath,{folder}", "-o", "all"]
    command = [*compiler_command(), "all.c", *flags, "-Wall", "-Wextra", "-Werror"]
    subprocess.run(command, cwd=folder, check=True)
    fed = b"".join(np.int64(len(x)).tobytes() + x.tobytes() for x in given)
    done = subprocess.run([folder / "all"], input=fed, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    told, at = done.stdout, 0
    for x in given:
        for want in wanted(x):
            shape = np.frombuffer(told, np.int64, want.ndim, at)
            assert tuple(shape) == want.shape
            at += shape.nbytes
            got = np.frombuffer(told, want.dtype, want.size, at).reshape(want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
            at += want.nbytes
    assert at == len(told)


def made(kind: str, folder: Path) -> tuple[M.Module, Model, int]:
    mge.random.seed(0)
    of, width = KINDS[kind]
    net = evaluated(of())
    return net, dumped(net, folder / "net.mge", x=rows(24, width, 1)), width


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_runs_by_its_own_code(kind: str, is_wide: bool, tmp_path: Path) -> None:
    net, model, width = made(kind, tmp_path)
    ranges: Any = {"x": [(0, 40), width]} if is_wide else None
    compiled = compile_offline(model, ranges=ranges)
    write_models(tmp_path / "net.tm", [compiled], "test")
    offline = load_offline(tmp_path / "net.tm")
    assert offline.target and offline.ranges == ({"x_0": (0, 40)} if is_wide else {})
    for x in cases(is_wide, width):
        holds(offline.run({"x": x}).values(), eager(net, x))
    assert not offline._compiled and "treadle.engine.package.models" not in vars(offline)
    x = rows(24, width, 1)
    holds(Runner(model.graph, native=compiled.native)([x]), eager(net, x))
    first, most = offline.outputs[0], (40 if is_wide else 24) * (3 if kind == "classes" else 1)
    assert isinstance(first.pattern[0], str) and first.shapes[0][0] == most
    wanted = eager(net, x)
    out = np.empty_like(wanted[0])
    assert offline.run({"x": x}, {first.name: out})[first.name] is out
    holds([out], wanted[:1])
    with pytest.raises(ShapeError, match="has the shape"):
        offline.run({"x": x}, {first.name: np.empty((40, *out.shape[1:]), np.float32)})
    with pytest.raises(ShapeError, match="for 0 to 40" if is_wide else "other shapes"):
        offline.run({"x": rows(41, width, 1)})
    offline.close()
    holds(offline.run({"x": x}).values(), wanted)


def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    _, model, width = made("mask", tmp_path)
    for name in ("a.tm", "b.tm"):
        compiled = compile_offline(model, ranges={"x": [(0, 40), width]})
        write_models(tmp_path / name, [compiled], "test")
    assert (tmp_path / "a.tm").read_bytes() == (tmp_path / "b.tm").read_bytes()


@with_c
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_library_tells_what_was_found(kind: str, is_wide: bool, tmp_path: Path) -> None:
    net, model, width = made(kind, tmp_path)
    write_library(model, tmp_path, "net", ranges={"x": [(0, 40), width]} if is_wide else None)
    library_gives(tmp_path, PROGRAM, cases(is_wide, width), lambda x: eager(net, x))


def test_extents_that_the_model_does_not_take_are_refused(tmp_path: Path) -> None:
    def sums(x: Any) -> Any:
        return Add()(Nonzero()(Greater()(x, Neg()(x))), Nonzero()(Less()(x, Neg()(x))))

    with recording_guards() as guards:
        graph = trace_body(sums, [TensorType(dt.float32, (6,))])
    assert guards
    made = compile_offline(Model(replace(graph, guards=tuple(guards)), ("x",), ("y",)))
    write_models(tmp_path / "net.tm", [made], "test")
    offline = load_offline(tmp_path / "net.tm")
    (found,) = offline.run([np.array([1, -1, 2, -2, 0, 0], np.float32)]).values()
    assert found.tolist() == [[1], [5]]
    with pytest.raises(ShapeError, match=r"data decide .* nonzero_0 = 3, nonzero_1 = 2"):
        offline.run([np.array([1, -1, 2, -2, 0, 1], np.float32)])


def test_a_phase_has_programs_for_the_extents_that_it_needs(tmp_path: Path) -> None:
    """The first one takes x alone, so it has none for extents of y."""

    def scaled(x: Any, y: Any) -> Any:
        return x[x > 0].sum() * y, y[::-1]

    model = dumped(scaled, tmp_path / "m", x=rows(9, 1, 1)[:, 0], y=rows(7, 2, 1))
    made = compile_offline(model, ranges={"x": [(0, 40)], "y": [(0, 20), 2]})
    write_models(tmp_path / "net.tm", [made], "test")
    offline = load_offline(tmp_path / "net.tm")
    for n, m in ((0, 0), (1, 20), (40, 1), (17, 3)):
        x, y = rows(n, 1, n)[:, 0], rows(m, 2, m)
        holds(
            offline.run([x, y]).values(), [z.numpy() for z in scaled(mge.tensor(x), mge.tensor(y))]
        )


def masked(count: int, joined: bool) -> Any:
    """A function of rows that so many masks select; joined, they are suppressed together."""

    def alone(x: Any) -> Any:
        each = [x[x[:, c] > 0.3] for c in range(count)]
        return (*(F.softmax(y * 2, 1) for y in each), *(y.sum(0) for y in each))

    def together(x: Any) -> Any:
        each = [x[x[:, c] > 0.3] for c in range(count)]
        rows = F.concat([y * (c + 1) for c, y in enumerate(each)], 0)
        boxes = F.concat([rows[:, :2], rows[:, :2] + F.abs(rows[:, 2:4])], 1)
        kept = F.vision.nms(boxes, F.concat([F.sigmoid(y[:, 0]) for y in each], 0), 0.5)
        return boxes[kept], kept

    return together if joined else alone


def runs_by_its_file(net: Any, width: int, folder: Path) -> Model:
    """The compiled model, whose file gives what the function does, for none, some and all rows."""
    made = compile_offline(dumped(net, folder / "m", x=rows(24, width, 1)))
    write_models(folder / "net.tm", [made], "test")
    offline = load_offline(folder / "net.tm")
    for seed in range(5):
        x = rows(24, width, seed)
        holds(offline.run([x]).values(), eager(net, x))
    return made


@pytest.mark.parametrize(
    "count, joined, programs", [(3, False, 13), (5, False, 21), (3, True, 47), (5, True, 87)]
)
def test_masks_add_programs(count: int, joined: bool, programs: int, tmp_path: Path) -> None:
    """What several masks select has a sum of programs, not a product."""
    made = runs_by_its_file(masked(count, joined), 5, tmp_path)
    assert len(made.native[0].gears) <= programs


def test_pieces_of_known_and_of_found_rows_are_joined(tmp_path: Path) -> None:
    """More pieces than found extents: what was selected twice, and what was not."""

    def together(x: Any) -> Any:
        each = [x[x[:, c] > 0.3] for c in range(3)]
        return (F.concat([*each, x, each[0] * 2, x[:2]], 0),)

    runs_by_its_file(together, 4, tmp_path)


def test_sums_that_types_take_apart_have_no_name(tmp_path: Path) -> None:
    """Rows of three masks are joined, cut at one of them, and masked once more."""

    def cut(x: Any) -> Any:
        each = [x[x[:, c] > 0.3] for c in range(3)]
        joined = F.concat(each, 0)
        back = joined[: each[0].shape[0]] + each[0]
        return back, F.softmax(joined, 0), joined[joined[:, 0] > 0], F.reshape(joined, (-1,))

    runs_by_its_file(cut, 4, tmp_path)


def test_a_guard_on_extents_of_two_parts_is_looked_at(tmp_path: Path) -> None:
    def sums(x: Any) -> Any:
        return Neg()(Nonzero()(Greater()(x, Neg()(x)))), Neg()(Nonzero()(Less()(x, Neg()(x))))

    graph = trace_body(sums, [TensorType(dt.float32, (6,))])
    first, second = (v.type.shape[0] for v in graph.outputs)
    graph = replace(graph, guards=(equal(first, second),))
    made = compile_offline(Model(graph, ("x",), ("y", "z")))
    write_models(tmp_path / "net.tm", [made], "test")
    offline = load_offline(tmp_path / "net.tm")
    found = offline.run([np.array([1, -1, 2, -2, 0, 0], np.float32)]).values()
    assert [y.tolist() for y in found] == [[[0], [-2]], [[-1], [-3]]]
    with pytest.raises(ShapeError, match=r"data decide .* nonzero_0 = 3, nonzero_1 = 2"):
        offline.run([np.array([1, -1, 2, -2, 0, 1], np.float32)])


# -- damaged files -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decided")
    _, model, _ = made("mask", folder)
    write_models(folder / "net.tm", [compile_offline(model)], "test")
    return folder / "net.tm"


def lied(sound: Path, bad: Path, change: Any) -> Path:
    """The file with another manifest, whose digests are right."""
    with open_source(sound) as source:
        header = read_header(source)
        data = source.read(header.data_start, source.size)
    manifest = json.loads(header.metadata[sealed.MANIFEST])
    change(manifest["models"][0]["native"][0])
    bad.write_bytes(resealed(manifest, header.entries, data))
    return bad


def test_an_extent_beyond_its_range_is_no_extent(sound: Path, tmp_path: Path) -> None:
    def change(entry: Any) -> None:
        entry["phases"]["each"][0]["found"][0][2] = 3

    bad = load_offline(lied(sound, tmp_path / "bad.tm", change), allow_native=True)
    with pytest.raises(LoadError, match=r"nonzero_0 = .* of 24 rows, from 0 to 3 declared"):
        bad.run([rows(24, 4, 4)])


@pytest.fixture(scope="module")
def sound_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose phases are taken apart: nine of them."""
    folder = tmp_path_factory.mktemp("parts")
    _, model, _ = made("classes", folder)
    write_models(folder / "net.tm", [compile_offline(model)], "test")
    return folder / "net.tm"


@pytest.mark.parametrize("other", [0, 10**6, "nonzero_1"])
def test_every_number_of_parts_may_lie(sound_parts: Path, tmp_path: Path, other: Any) -> None:
    _lies(sound_parts, tmp_path, other, every=9)


@pytest.mark.parametrize("other", [-1, 1, 10**6, "x", None, [], [[0, 1]], 0.5, {}])
def test_every_number_of_phases_may_lie(sound: Path, tmp_path: Path, other: Any) -> None:
    _lies(sound, tmp_path, other, every=1)


def _lies(sound: Path, tmp_path: Path, other: Any, every: int) -> None:
    """A file whose phases are described wrongly is refused, or its run is, or it runs."""
    count = 0

    def change(entry: Any) -> None:
        nonlocal count
        found = list(places(entry["phases"]))
        count = len(found)
        holder, key = found[number]
        holder[key] = other

    number, refused = 0, 0
    while not count or number < count:
        bad = lied(sound, tmp_path / "bad.tm", change)
        try:
            load_offline(bad, allow_native=True).run([rows(24, 4, 4)])
        except TreadleError:
            refused += 1
        number += every
    assert refused > count // (2 * every)


def test_phases_need_extents_and_gears(sound: Path, tmp_path: Path) -> None:
    def without(entry: Any) -> None:
        del entry["phases"]

    def alone(entry: Any) -> None:
        del entry["ranges"]

    def fewer(entry: Any) -> None:
        entry["phases"]["each"].pop()

    for change in (without, alone, fewer):
        with pytest.raises(CheckpointError, match="damaged"):
            load_offline(lied(sound, tmp_path / "bad.tm", change), allow_native=True)
