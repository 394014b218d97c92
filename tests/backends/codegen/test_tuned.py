"""Recorded choices: who wins, what is refused, what results look like under all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.backends.codegen.contractions import check, lowered, types_of

from treadle.backends.codegen import tuned
from treadle.backends.codegen.contraction.shared.problem import ContractionProblem
from treadle.backends.codegen.contraction.shared.tile import choose_tile
from treadle.backends.codegen.contraction.tiles.blocks import ScratchSizes, TileBlocks
from treadle.backends.codegen.contraction.tiles.schedule import schedule
from treadle.backends.codegen.target import AVX2, AVX512
from treadle.backends.program import Lowered
from treadle.base import dtype as dt
from treadle.ops.conv import Conv
from treadle.ops.matmul import IntMatmul, Matmul

RNG = np.random.default_rng(0)
NUMBERS = itertools.count()


def matrices(m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.standard_normal((m, k), "float32"), RNG.standard_normal((k, n), "float32")


def asked_by(op, arrays, frozen=()) -> dict[str, tuple[tuned.Choice, ...]]:
    """What an op asks; the digest in `trying`, a new one at every call, has it lowered anew."""
    with tuned.trying({"nobody": {"x": next(NUMBERS)}}), tuned.questions() as asked:
        lowered(op, arrays, frozen)
    return asked


def sizes_of(how: Lowered) -> tuple[int, ...]:
    """All plain numbers that the last launch is given, and its items."""
    launch = how.launches[-1]
    return (*(a for a in launch.arguments if isinstance(a, int)), launch.items)


@pytest.fixture(autouse=True)
def no_record():
    before = tuned.installed()
    tuned.install({})
    yield
    tuned.install(before)


def test_a_choice_is_what_is_tried_then_what_is_recorded_then_nothing() -> None:
    key = tuned.name_of(AVX2, "key")
    assert tuned.choice(AVX2, "key") is None
    tuned.install({key: {"x": 1}})
    assert tuned.choice(AVX2, "key") == {"x": 1}
    assert tuned.choice(AVX512, "key") is None
    with tuned.trying({key: {"x": 2}}):
        assert tuned.choice(AVX2, "key") == {"x": 2}
        with tuned.trying({}):
            assert tuned.choice(AVX2, "key") == {"x": 1}
    assert tuned.choice(AVX2, "key") == {"x": 1}


def test_questions_are_noted_once_with_their_offers() -> None:
    with tuned.questions() as asked:
        tuned.choice(AVX2, "a", lambda: [{"x": 1}, {"x": 2}])
        tuned.choice(AVX2, "a", lambda: [{"x": 3}])
        tuned.choice(AVX2, "b")
    assert asked == {"avx2 a": ({"x": 1}, {"x": 2}), "avx2 b": ()}
    tuned.choice(AVX2, "c", lambda: pytest.fail("nobody listens"))


def test_digests_tell_records_apart() -> None:
    assert tuned.digest() == ""
    tuned.install({"a": {"x": 1, "y": 2}})
    first = tuned.digest()
    tuned.install({"a": {"y": 2, "x": 1}})
    assert tuned.digest() == first != ""
    tuned.install({"a": {"x": 1, "y": 3}})
    assert tuned.digest() not in ("", first)
    with tuned.trying({"b": {"x": 1}}):
        assert tuned.digest().startswith(f"{_digest_of_record()}+")


def _digest_of_record() -> str:
    with tuned.trying({}):
        return tuned.digest().partition("+")[0]


def test_products_ask_and_follow() -> None:
    arrays = matrices(120, 96, 80)
    asked = asked_by(Matmul(), arrays)
    [(name, offers)] = asked.items()
    assert name.endswith("contraction 1x120x80x96 float32 float32 float32 a01 b01")
    assert len(offers) > 3 and all(sorted(o) == ["depth", "height", "width"] for o in offers)
    model = sizes_of(lowered(Matmul(), arrays))
    for offer in offers:
        tuned.install({name: offer})
        found = sizes_of(lowered(Matmul(), arrays))
        assert found != model
        assert set(offer.values()) <= set(found)
    tuned.install({})
    assert sizes_of(lowered(Matmul(), arrays)) == model


@pytest.mark.parametrize(("m", "k", "n"), [(120, 96, 80), (61, 300, 45), (13, 2600, 50)], ids=str)
def test_results_are_right_under_every_offer(m: int, k: int, n: int) -> None:
    arrays = matrices(m, k, n)
    for frozen in ((False, False), (False, True)):
        [(name, offers)] = asked_by(Matmul(), arrays, frozen).items()
        for offer in offers[:: max(1, len(offers) // 6)]:
            with tuned.trying({name: offer}):
                check(Matmul(), arrays, k, frozen=frozen)


def test_convolutions_and_integers_are_right_under_every_offer() -> None:
    image = RNG.standard_normal((1, 8, 12, 12), "float32")
    weight = RNG.standard_normal((16, 8, 3, 3), "float32")
    small = [RNG.integers(-9, 9, s).astype("int8") for s in ((40, 600), (600, 40))]
    for op, arrays, terms in (
        (Conv((1, 1), ((1, 1), (1, 1)), (1, 1), 1), (image, weight), 72),
        (IntMatmul(), small, 600),
    ):
        for name, offers in asked_by(op, arrays).items():
            for offer in offers[:: max(1, len(offers) // 5)]:
                with tuned.trying({name: offer}):
                    check(op, arrays, terms)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"depth": 96, "width": 1},
        {"depth": 96, "width": 1, "height": 12, "more": 1},
        {"depth": 0, "width": 1, "height": 12},
        {"depth": 97, "width": 1, "height": 12},
        {"depth": 96, "width": 10**9, "height": 12},
        {"depth": 96, "width": 1, "height": -6},
    ],
    ids=str,
)
def test_choices_that_do_not_fit_are_ignored(choice: dict[str, int]) -> None:
    arrays = matrices(120, 96, 80)
    model = sizes_of(lowered(Matmul(), arrays))
    [name] = asked_by(Matmul(), arrays)
    tuned.install({name: choice})
    assert sizes_of(lowered(Matmul(), arrays)) == model


def test_scratch_memory_bounds_blocks() -> None:
    tile = choose_tile(AVX2, dt.float32, 600, 600)
    problem = _problem(600, 600, 5000)
    room = ScratchSizes(panels=5000 * tile.width, sums=60 * tile.width, packed=False)
    assert room.holds(TileBlocks(5000, 1, 600), problem, tile)
    assert not room.holds(TileBlocks(5000, 2, 600), problem, tile)  # panels
    assert room.holds(TileBlocks(2500, 1, 60), problem, tile)
    assert not room.holds(TileBlocks(2500, 1, 66), problem, tile)  # sums of several steps
    packed = ScratchSizes(panels=0, sums=60 * tile.width, packed=True)
    assert packed.holds(TileBlocks(5000, 2, 600), problem, tile)
    plan = schedule(problem, tile, AVX2)
    assert plan.division.depth < problem.k and plan.spec.split


def _problem(m: int, n: int, k: int) -> ContractionProblem:
    from treadle.backends.codegen.contraction.shared.body import anchor_of, read_product
    from treadle.graph.builder import trace_body

    types = types_of((np.empty((m, k), "float32"), np.empty((k, n), "float32")))
    body = trace_body(Matmul(), types, "product")
    reading = read_product(body, anchor_of(body))
    return reading.problem.simplified()
