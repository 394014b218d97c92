"""Plans for many extents: how many there are, what they give, and what programs share."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle import jit
from treadle.base.errors import IndexRangeError, ShapeError
from treadle.base.estimates import at_most, estimate, is_many, is_multiple
from treadle.base.guards import deciding, remembered
from treadle.base.symbol import Dim, symbol
from treadle.engine.extents import plans
from treadle.engine.extents.cells import cell_of
from treadle.engine.extents.regime import Regime
from treadle.graph.parser import parse
from treadle.graph.printer import to_text
from treadle.jit.compiled import Compiled
from treadle.jit.family import Family

Function = Callable[[mge.Tensor], mge.Tensor]
LENGTHS = (2, 3, 7, 15, 16, 17, 40, 127, 128, 300)
RECALL = plans.recall_regime
CELLS = 3
"""Of these lengths: 2 to 15, 16 to 127, 128 to 1023."""


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are made here, whatever earlier runs have left on disk."""
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


def rows(n: int, width: int = 4) -> mge.Tensor:
    return mge.tensor(np.random.default_rng(n).standard_normal((n, width), "float32"))


def compiled_of(function: Function, **options: object) -> Compiled[..., mge.Tensor]:
    made = jit.compile(dynamic={0: {0: "n"}}, options=jit.Options(**options))  # type: ignore[arg-type]
    found: Compiled[..., mge.Tensor] = made(function)
    return found


def families_of(compiled: Compiled[..., mge.Tensor]) -> list[Family]:
    return [f for found in compiled._captures.families.values() for f in found]


def regimes_of(compiled: Compiled[..., mge.Tensor]) -> list[Regime]:
    return [r for f in families_of(compiled) for r in f.regimes]


SHARED: dict[str, tuple[Function, int]] = {
    "elementwise": (lambda x: F.relu(x) * 2 + x.shape[0], 3),
    "softmax": (lambda x: F.softmax(x, axis=0), 3),
    "softmax of rows": (lambda x: F.softmax(x, axis=1), 3),
    "variance": (lambda x: F.var(x, axis=0) + F.mean(x), 3),
    "norm": (lambda x: F.nn.layer_norm(x, (4,), False), 3),
    "transposed": (lambda x: F.transpose(x, (1, 0)) * 2, 3),
    "argmax": (lambda x: F.argmax(x, axis=0) + F.argmin(x, axis=1).sum(), 3),
    "concat": (lambda x: F.concat([x, x * 2, x[:1]]), 3),
    "stack": (lambda x: F.stack([x, -x], axis=1), 3),
    "cumulative": (lambda x: F.cumsum(x, axis=0), 3),
    "a slice": (lambda x: x[1:-1] if x.shape[0] > 2 else x, 5),
    "a half": (lambda x: x[: x.shape[0] // 2], 4),
    "tile": (lambda x: F.tile(x, (3, 2)), 3),
    "pad": (lambda x: F.nn.pad(x, ((1, 2), (0, 0)), mode="constant"), 3),
    "table": (lambda x: F.expand_dims(x, 0) - F.expand_dims(x, 1), 3),
    "index": (lambda x: x[F.argmax(x, axis=0)], 3),
    "rows by rows": (lambda x: x[F.arange(x.shape[0], dtype="int32") // 2] * 2, 3),
    "counted down": (lambda x: x[F.arange(x.shape[0] - 1, -1, -1, dtype="int32")] * 2, 3),
    "counted down in bytes": (lambda x: F.arange(x.shape[0], 0, -2, dtype="int8"), 3),
    "counted in halves": (lambda x: F.arange(-x.shape[0], x.shape[0], 3, dtype="float16"), 3),
    "in steps of n": (lambda x: F.arange(3, x.shape[0] ** 2, x.shape[0] + 1, dtype="int32"), 3),
    "down in steps of n": (lambda x: F.arange(x.shape[0] ** 2, 0, -x.shape[0]), 3),
    "filled with n": (lambda x: F.full((x.shape[0], 2), x.shape[0]) + x[:, :2], 3),
    "one_hot of all": (lambda x: F.one_hot(F.argmax(x.T, 1).astype("int32"), x.shape[0]), 3),
    "one_hot": (lambda x: F.one_hot(F.argmax(x, axis=1).astype("int32"), 4), 3),
    "picked": (lambda x: F.gather(x, 1, F.argmax(x, axis=1).reshape(-1, 1).astype("int32")), 3),
    "two indices": (lambda x: x[F.argmax(x, axis=0), F.argmin(x[:4], axis=1)[:1]], 5),
    "nothing at the hint": (lambda x: F.exp(x[8:]) if x.shape[0] > 8 else F.exp(x), 4),
    "cross entropy": (lambda x: F.nn.cross_entropy(x, F.argmin(x, axis=1).astype("int32")), 6),
}


@pytest.mark.parametrize("name", SHARED)
def test_one_plan_serves_the_extents_of_a_cell(name: str) -> None:
    function, most = SHARED[name]
    compiled = compiled_of(function, check=True)
    before = {n: rows(n) for n in LENGTHS}
    first = {n: compiled(x) for n, x in before.items()}
    again = {n: compiled(x) for n, x in before.items()}
    for n, x in before.items():
        want = function(x)
        assert first[n].shape == want.shape and first[n].dtype == want.dtype
        np.testing.assert_allclose(first[n].numpy(), want.numpy(), rtol=2e-5, atol=1e-6)
        np.testing.assert_array_equal(first[n].numpy(), again[n].numpy())
    assert [f.alone for f in families_of(compiled)] == [""] * len(families_of(compiled))
    assert CELLS <= len(regimes_of(compiled)) <= most


def test_numbers_do_not_depend_on_the_extents_before() -> None:
    """Registers are used again, also those that a question has left half written."""

    def function(x: mge.Tensor) -> mge.Tensor:
        y = F.softmax(x @ F.transpose(x, (1, 0)), 1) @ F.cumsum(x, 0)
        return F.concat([y[: x.shape[0] // 2], F.sort(y[:, 0])[0].reshape(-1, 1) * x, y])

    compiled = compiled_of(function)
    for n in (20, 300):
        compiled(rows(n))
    lengths = [*range(16, 64), 127, 128, 129, 500, 1023]
    for regime in regimes_of(compiled):

        def numbers(n: int, regime: Regime = regime) -> object:
            at = regime.numbers((n,))
            return at and (at.numbers.tolist(), at.peak, at.results)

        alone = {}
        for n in lengths:
            regime._work.clear()
            alone[n] = numbers(n)
        assert any(alone.values())
        for n in np.random.default_rng(0).permutation(lengths * 2).tolist():
            assert numbers(n) == alone[n]


@pytest.mark.parametrize("name", ["cumulative", "argmax of columns", "argmax of rows"])
def test_lines_are_shared_among_threads_as_their_own_length_wants(name: str) -> None:
    function: Function = {
        "cumulative": lambda x: F.cumsum(x, axis=0),
        "argmax of columns": lambda x: F.argmax(x, axis=0),
        "argmax of rows": lambda x: F.argmax(F.transpose(x, (1, 0)) * 2, axis=1),
    }[name]
    many, alone = compiled_of(function, check=True), jit.compile(dynamic=False)(function)
    shared = set()
    for n in (400, 130, 700, 1000):
        found = []
        x = rows(n, 512)
        for compiled in (many, alone):
            np.testing.assert_array_equal(compiled(x).numpy(), function(x).numpy())
            steps = compiled.variant((x,), {}).stages.planned.plan.steps
            (run,) = (s for s in steps if any(k in str(s.kernel) for k in ("cum_sum", "argmax")))
            found.append((run.items, run.serial))
        (items, serial), (own, own_serial) = found
        assert not serial
        assert items == own or (own_serial and items <= 2)
        shared.add(items)
    assert len(shared) > 2, "otherwise one number would do"


NUMBERS: dict[str, Function] = {
    "channels": lambda x: F.conv2d(
        F.reshape(x, (1, x.shape[0], 2, 2)), F.ones((3, x.shape[0], 2, 2))
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_takes_numbers_has_a_program_for_each_extent_and_says_why(name: str) -> None:
    function = NUMBERS[name]
    compiled = compiled_of(function)
    for n in (2, 5, 9):
        want = function(rows(n)).numpy()
        np.testing.assert_allclose(compiled(rows(n)).numpy(), want, rtol=1e-5, atol=1e-6)
    (family,) = families_of(compiled)
    assert "a number is needed" in family.alone and not family.regimes


@pytest.mark.parametrize("length", [3, 8])
def test_an_index_out_of_range_raises_at_every_extent(length: int) -> None:
    table = mge.tensor(np.arange(32, dtype="float32").reshape(16, 2))
    compiled = compiled_of(lambda index: table[index] * 2)
    for wrong in (17, -18, 3, 16):
        numbers = np.arange(length, dtype="int32")
        numbers[length // 2] = wrong
        if wrong == 3:
            assert compiled(mge.tensor(numbers)).shape == (length, 2)
            continue
        with pytest.raises(IndexRangeError, match=str(wrong)):
            compiled(mge.tensor(numbers))
    assert len(regimes_of(compiled)) == 1


def test_the_range_of_an_index_is_that_of_the_call() -> None:
    made = jit.compile(dynamic={0: {0: "n"}, 1: {0: "m"}})
    compiled = made(lambda x, index: (x * 2)[index] + F.expand_dims(index, 1))
    for n, m in ((4, 3), (7, 2), (9, 12), (20, 5), (30, 16), (16, 300)):
        x, index = rows(n), np.zeros(m, "int32")
        for inside in (n - 1, -n):
            index[m // 2] = inside
            want = (x.numpy() * 2)[index] + index[:, None].astype("float32")
            np.testing.assert_array_equal(compiled(x, mge.tensor(index)).numpy(), want)
        for outside in (n, -n - 1):
            index[m // 2] = outside
            with pytest.raises(IndexRangeError, match=f"index {outside} .* extent of {n}\n"):
                compiled(x, mge.tensor(index))
    assert [f.alone for f in families_of(compiled)] == [""]
    assert len(regimes_of(compiled)) == 4, "pairs of cells that were met"


def test_a_constant_index_is_out_of_range_at_some_extents_only() -> None:
    picked = mge.tensor([5, 1])
    compiled = compiled_of(lambda x: (x * 2)[picked])
    for n in (3, 9, 5, 6, 20):
        if n > 5:
            want = rows(n).numpy()[[5, 1]] * 2
            np.testing.assert_array_equal(compiled(rows(n)).numpy(), want)
            continue
        with pytest.raises(IndexRangeError, match=f"index 5 is out of range .* {n}\n"):
            compiled(rows(n))
    assert len(regimes_of(compiled)) == 2


def test_gradients_of_embeddings_share_plans() -> None:
    table = mge.Parameter(np.arange(80, dtype="float32").reshape(20, 4) / 40)
    gm = mge.autodiff.GradManager().attach([table])

    def step(index: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (F.nn.embedding(index, table) ** 3).sum()
            gm.backward(loss)
        return loss

    compiled = compiled_of(step)
    for n in (3, 9, 14, 40, 100):
        index = mge.tensor(np.random.default_rng(n).integers(0, 20, n, "int32"))
        found = []
        for run in (compiled, step):
            table.grad = None
            run(index)
            found.append(table.grad.numpy())
        np.testing.assert_allclose(*found, rtol=1e-5)
    assert len(regimes_of(compiled)) == 2


def test_bits_do_not_depend_on_the_order_of_extents() -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(x * 3, axis=0) + F.var(x) + F.sum(x) / x.shape[0]

    found: dict[int, set[bytes]] = {}
    for order in list(permutations((3, 9, 15, 100)))[::4]:
        compiled = compiled_of(function)
        for n in order:
            found.setdefault(n, set()).add(compiled(rows(n)).numpy().tobytes())
    assert {n: len(bits) for n, bits in found.items()} == {3: 1, 9: 1, 15: 1, 100: 1}


def test_a_process_that_finds_a_program_on_disk_gets_the_same_bits(tmp_path: Path) -> None:
    text = (
        "import numpy as np, treadle as mge, treadle.functional as F, sys\n"
        "from treadle.jit import Extent\n"
        "axes = {0: {0: eval(sys.argv[1])}}\n"
        "f = mge.jit.compile(dynamic=axes)(lambda x: F.softmax(x, axis=0) + F.var(x))\n"
        "for n in map(int, sys.argv[2:]):\n"
        "    x = mge.tensor(np.random.default_rng(n).standard_normal((n, 5), 'float32'))\n"
        "    print(n, f(x).numpy().tobytes().hex())\n"
        "every = [g for found in f._captures.families.values() for g in found]\n"
        "made = [sum(not r.is_recalled for r in g.regimes) for g in every]\n"
        "print('made', made, file=sys.stderr)\n"
    )

    def run(*lengths: int, axis: str = "'n'") -> tuple[list[str], str]:
        done = subprocess.run(
            [sys.executable, "-c", text, axis, *map(str, lengths)],
            env={**os.environ, "TREADLE_CACHE_DIR": str(tmp_path), "MALLOC_CHECK_": "3"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines(), done.stderr.splitlines()[-1]

    cold, made = run(5, 9)
    assert made == "made [1]"
    assert run(5, 9) == (cold, "made [0]"), "it was kept"
    more, made = run(9, 5, 7)
    assert sorted(more[:2]) == sorted(cold) and made == "made [0]", "the plan serves 7, too"
    for axis in ("Extent('n', edges=(8,))", "Extent('n', edges=(8,), hint=12)"):
        cold, made = run(5, 9, axis=axis)
        assert made == "made [2]", "programs for other ranges, or that are tuned for others"
        assert run(5, 9, axis=axis) == (cold, "made [0]")


def test_parameters_that_change_are_packed_again_for_every_extent() -> None:
    scale = mge.Parameter(np.full(4, 2.0, "float32"))
    compiled = compiled_of(lambda x: x * F.exp(scale) + F.sum(scale))
    for turn in range(3):
        for n in (3, 5, 3, 20):
            want = rows(n).numpy() * np.exp(scale.numpy()) + scale.numpy().sum()
            np.testing.assert_allclose(compiled(rows(n)).numpy(), want, rtol=1e-5, atol=1e-5)
        scale[...] = mge.tensor(np.full(4, 0.5 + turn, "float32"))


def test_a_training_step_shares_plans() -> None:
    net = M.LayerNorm(4)
    gm = mge.autodiff.GradManager().attach(net.parameters())

    def step(x: mge.Tensor) -> mge.Tensor:
        with gm:
            loss = (net(x) ** 2 * x).mean()
            gm.backward(loss)
        return loss

    compiled = compiled_of(step)
    for n in (3, 6, 11, 3):
        got = compiled(rows(n))
        grads = [p.grad.numpy().copy() for p in net.parameters()]
        for p in net.parameters():
            p.grad = None
        want = step(rows(n))
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
        for p, grad in zip(net.parameters(), grads, strict=True):
            np.testing.assert_allclose(grad, p.grad.numpy(), rtol=1e-4, atol=1e-6)
            p.grad = None


@pytest.mark.parametrize("dynamic", [{0: {0: "n"}}, None])
def test_threads_call_at_extents_of_their_own(dynamic: dict[int, dict[int, str]] | None) -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(x, axis=0) + F.cumsum(x, axis=0)

    compiled, wrong = jit.compile(dynamic=dynamic)(function), []
    wanted = {n: function(rows(n)).numpy() for n in range(2, 26)}

    def work(lengths: Sequence[int]) -> None:
        for n in lengths:
            if not np.allclose(compiled(rows(n)).numpy(), wanted[n], atol=1e-5):
                wrong.append(n)

    threads = [
        threading.Thread(target=work, args=(list(range(2, 26))[i:] + list(range(2, 2 + i)),))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(regimes_of(compiled)) == 2


def test_a_fork_goes_on_with_extents_that_are_seen_to_change() -> None:
    def function(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(x, axis=0) * 2

    compiled = jit.compile(function)
    wanted = {n: function(rows(n)).numpy() for n in (3, 5, 9, 40)}
    for n in (3, 5):  # The second one opens the axis.
        compiled(rows(n))
    child = os.fork()
    if child == 0:
        fine = all(np.allclose(compiled(rows(n)).numpy(), wanted[n], atol=1e-5) for n in wanted)
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for n, result in wanted.items():
        np.testing.assert_allclose(compiled(rows(n)).numpy(), result, atol=1e-5)


@pytest.mark.parametrize(
    ("symbol", "ranges"),
    [
        ("2..", ((2, 15), (16, 127), (1024, 8191))),
        ("2..600 edges 8 64", ((2, 7), (8, 63), (64, 600))),
        ("5..600 edges 8 64 hint 41", ((2, 7), (8, 63), (64, 600))),
        ("2.. edges 8 64", ((2, 7), (8, 63), (64, 511), (512, 4095))),
        ("2..900 edges 900", ((2, 899), (900, 900))),
        ("2..900 edges 2", ((2, 900),)),
    ],
)
def test_cells_have_fixed_edges(symbol: str, ranges: Sequence[tuple[int, int]]) -> None:
    graph = parse(f"graph[n: {symbol}](%x: float32[n]) {{ return %x }}")
    assert parse(to_text(graph)) == graph
    for edges in ranges:
        for n in edges:
            cell = cell_of({"n": n}, graph)
            assert cell.ranges["n"] == edges and cell.holds({"n": n})
            assert edges[0] <= cell.hints["n"] <= edges[1]
            assert cell.hints == cell_of({"n": edges[1]}, graph).hints, "whichever came first"
            assert (cell.hints["n"] == 41) == ("hint 41" in symbol and edges[0] <= 41 <= edges[1])
    assert cell_of({"n": 1}, graph).ranges["n"] == (1, 1)


@pytest.mark.parametrize("told", ["edges 8 4", "edges 4 4", "edges 70", "edges 1", "hint 65"])
def test_edges_and_hints_outside_of_ranges_are_refused(told: str) -> None:
    with pytest.raises(ShapeError, match="do not fit its range"):
        parse(f"graph[n: 2..64 {told}](%x: float32[n]) {{ return %x }}")


def test_declared_edges_give_these_programs() -> None:
    def head(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(F.relu(x @ x.T), -1) @ x / x.shape[0]

    extents = 64, 2, 7, 512, 8, 63, 3, 40, 1, 0
    wanted = {n: head(rows(n)).numpy() for n in extents}
    for hint in (None, 48):
        length = jit.Extent("n", high=512, hint=hint, edges=(8, 64))
        for order in (extents, extents[::-1]):
            compiled = jit.compile(dynamic={0: {0: length}})(head)
            for n in order:
                np.testing.assert_allclose(compiled(rows(n)).numpy(), wanted[n], rtol=1e-4)
            [found] = [f for f in compiled.explain(form="json")["ranges"] if f["programs"]]
            programs = {tuple(p["range"]["n"]): p["hint"]["n"] for p in found["programs"]}
            assert programs.keys() == {(2, 7), (8, 63), (64, 512)}
            assert (programs[8, 63] == 48) == (hint == 48), "prices of its range alone"
    assert found["edges"] == {"n": [8, 64]} and found["hints"] == {"n": 48}
    assert "programs for many extents: n (edges 8 64; tuned for 48)" in compiled.explain()


def test_estimates_decide_nothing() -> None:
    n = symbol("n", 16, 127, 8)
    with deciding({"n": 24}, {"n": 64}) as decisions:
        assert estimate(n * 2) == 128 and is_multiple(n, 8) and not is_multiple(n, 16)
        assert is_many(n) and at_most(n) in (120, 127) and at_most(symbol("m")) is None
        assert estimate(n - 64) == 1 and estimate(64 - 2 * n) == -64
    assert not decisions.guards and not decisions.pins


def test_what_is_remembered_keeps_its_guards() -> None:
    asked = []

    @remembered(8)
    def lowered(x: Dim) -> str:
        asked.append(x)
        return "many" if x > 4 else "few"

    n = symbol("n", 2, 15)
    for value, want, runs in ((8, "many", 1), (9, "many", 1), (3, "few", 2), (2, "few", 2)):
        with deciding({"n": value}, {"n": 8}) as decisions:
            assert lowered(n) == want
        assert len(asked) == runs
        (guard,) = decisions.guards
        assert guard.holds({"n": value}) and not guard.holds({"n": 11 - value - (value > 8)})
    assert lowered(7) == "many" and lowered(7) == "many" and len(asked) == 3


ONES: dict[str, Function] = {
    "sum": lambda x: x[::2] + x,
    "chosen": lambda x: F.where(x[::2] > 0, x, x * 2),
    "repeated": lambda x: F.broadcast_to(x[::2], x.shape),
    "of a half": lambda x: x[: x.shape[0] // 2] * x,
}


@pytest.mark.parametrize("name", ONES)
@pytest.mark.parametrize("order", [(2, 2), (3, 2), (2, 3)])
def test_what_is_one_in_a_call_broadcasts_as_op_by_op(name: str, order: tuple[int, int]) -> None:
    function = ONES[name]
    compiled = compiled_of(function)
    for n in order:
        x = rows(n)
        try:
            want = function(x).numpy()
        except ShapeError:
            with pytest.raises(ShapeError):
                compiled(x)
            continue
        np.testing.assert_array_equal(compiled(x).numpy(), want)


def test_gradients_of_what_is_one_in_a_call() -> None:
    def step(x: mge.Tensor) -> mge.Tensor:
        gm = mge.autodiff.GradManager().attach([x])
        with gm:
            gm.backward(((x[::2] * x) ** 2).sum())
        return x.grad

    compiled = compiled_of(step)
    np.testing.assert_allclose(compiled(rows(2)).numpy(), step(rows(2)).numpy(), rtol=1e-5)


def test_programs_for_many_extents_are_explained() -> None:
    @jit.compile(dynamic={0: {0: "n"}})
    def head(x: mge.Tensor) -> mge.Tensor:
        return F.softmax(x[:, ::-1] if x.shape[0] > 4 else x, 0)

    assert "ranges" not in jit.compile(lambda x: x * 2).explain(rows(3), form="json")
    for n in (3, 9, 12, 30, 1):
        head(rows(n))
    small, large = head.explain(form="json")["ranges"]
    assert (small["extents"], small["guards"]) == (["n"], ["-n + 4 >= 0"])
    assert large["guards"] == ["n - 5 >= 0"] and large["alone"] == "" and not large["numbers"]
    assert [p["range"] for p in large["programs"]] == [{"n": [2, 15]}, {"n": [16, 127]}]
    assert [[one["n"] for one in p["met"]] for p in large["programs"]] == [[9, 12], [30]]
    assert all(one["arena"] >= 0 for p in large["programs"] for one in p["met"])
    text = head.explain()
    assert "programs for many extents: n, where n - 5 >= 0" in text
    assert "16 <= n <= 127" in text and "9, 12" in text

    @jit.compile(dynamic={0: {0: "n"}})
    def asking(x: mge.Tensor) -> mge.Tensor:
        return x * math.sqrt(x.shape[0])

    asking(rows(5))
    assert "the number of n is asked for at " in asking.explain()


def test_programs_from_disk_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they ask is asked again, at extents that they serve, which their hints may not be."""

    def reshaped(x: mge.Tensor) -> mge.Tensor:
        return F.exp(F.reshape(x, (int(x.shape[0]), 2, 2)))

    before = compiled_of(reshaped, check=False)
    _ = [before(rows(n)) for n in (9, 5)]
    monkeypatch.setattr(plans, "recall_regime", RECALL)
    again = compiled_of(reshaped, check=False)
    _ = [again(rows(n)) for n in (9, 5)]
    known, found = (f.explain(form="json")["ranges"] for f in (before, again))
    assert all(p["cached"] for capture in found for p in capture["programs"])
    for one, other in zip(known, found, strict=True):
        assert [p["guards"] for p in one["programs"]] == [p["guards"] for p in other["programs"]]
    assert "n - 9 == 0" in again.explain()


def test_sizes_beyond_64_bits_are_an_error_that_names_the_extent() -> None:
    def many(x: mge.Tensor) -> mge.Tensor:
        n = x.shape[0]
        return (F.zeros((n, n, n * n, n, n), dtype="int8") + x.astype("int8")[:1]).sum()

    compiled = compiled_of(many)
    assert compiled(rows(2)[:, 0]).item() == many(rows(2)[:, 0]).item()
    with pytest.raises(ShapeError, match=r"beyond 64 bits(.|\n)*n = 3000"):
        compiled(F.ones(3000))


RANDOM: dict[str, Function] = {
    "permutation": lambda x: mge.random.permutation(x.shape[0]),
    "rows in another order": lambda x: mge.random.permutation(x),
    "half of all": lambda x: F.topk(x.T, x.shape[0] // 2 + 1)[1],
    "more than all": lambda x: F.topk(x.T, x.shape[0] * 2)[0],
    "the middle one": lambda x: F.topk(x.T, x.shape[0] // 2, kth_only=True)[0],
    "the least third": lambda x: F.topk(x.T, x.shape[0] // 3 + 1, descending=False)[1],
}


@pytest.mark.parametrize("name", RANDOM)
def test_orders_of_as_many_as_a_call_says(name: str) -> None:
    function = RANDOM[name]
    compiled = compiled_of(function)
    for n in (5, 9, 4, 17, 130, 2):
        mge.random.seed(n)
        want = function(rows(n)).numpy()
        mge.random.seed(n)
        np.testing.assert_array_equal(compiled(rows(n)).numpy(), want)
    (family,) = families_of(compiled)
    assert not family.captured.pins and not family.alone
