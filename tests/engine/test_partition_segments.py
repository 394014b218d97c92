"""Partition with segment engines: costs of handing over and of segments, claims, constants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pytest
from tests.engine.segment_engine import FakeSegments
from tests.engine.test_partition import CARD, HOST, FakeEngine, random_graph

from treadle.backends.segments import Rates
from treadle.base import dtype as dt
from treadle.base.types import TensorType
from treadle.engine.options import Options
from treadle.engine.partition import check_partition, leave_to_host, partition
from treadle.engine.partition.assign import Assigner
from treadle.engine.partition.candidates import Candidates
from treadle.engine.partition.claims import Claims, convex
from treadle.engine.partition.model import CostModel, MemoryLink
from treadle.engine.partition.prune import Pruner
from treadle.engine.partition.segments import Segmented
from treadle.engine.report import CompileReport
from treadle.graph.builder import trace_body
from treadle.graph.evaluate import evaluate
from treadle.graph.ir import Graph, Node
from treadle.graph.verify import verify
from treadle.ops.elementwise import Add, Mul, Neg
from treadle.ops.fused import Fused
from treadle.ops.matmul import Matmul
from treadle.ops.unary import Exp, Tanh

SQUARE = TensorType(dt.float32, (64, 64))


class Claiming(FakeSegments):
    """A segment engine that claims what a function of the graph says."""

    def __init__(self, wants: Callable[[Graph], Sequence[Collection[Node]]]) -> None:
        super().__init__()
        self.wants = wants

    def claim(self, graph: Graph, /) -> Sequence[Collection[Node]]:
        return self.wants(graph)


def model(seed: int, segment: float = 0.0) -> CostModel:
    rng = np.random.default_rng(seed)

    def rates() -> Rates:
        return Rates(*(10 ** rng.uniform(8, 10, 2)), 1e-6, 0.0)

    fast = rates()
    fake = Rates(fast.flops, fast.bandwidth, fast.launch, segment)
    handover = MemoryLink(10 ** rng.uniform(-7, -4.5), 10 ** rng.uniform(8, 10))
    listed = {"host": rates(), "other": rates(), "card": rates(), "fake": fake}
    return CostModel(listed, link=MemoryLink(1e-5, 1e9), handover=handover)


def run(
    graph: Graph, engines: Sequence[Any], costs: CostModel | None = None, **options: Any
) -> tuple[Segmented, CompileReport]:
    report = CompileReport()
    frozen = options.pop("frozen", ())
    parts = partition(graph, engines, Options(check=True, **options), report, costs, frozen)
    check_partition(parts, graph)
    return parts, report


def brute_force(assigner: Assigner, price: Callable[[dict[Node, int]], float]) -> float:
    able = [
        [d for d in range(len(assigner.domains)) if assigner.seconds(n, d) != float("inf")]
        for n in assigner.graph.nodes
    ]
    picks = itertools.product(*able)
    return min(price(dict(zip(assigner.graph.nodes, p, strict=True))) for p in picks)


# -- costs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_exact_where_engines_share_memory(seed: int) -> None:
    fake = FakeSegments(never=("exp",) if seed % 2 else ())
    assigner = Assigner(random_graph(seed, 9), Candidates((HOST, fake)), model(seed))
    best = assigner.cost(assigner.best_domains())
    assert best == pytest.approx(brute_force(assigner, assigner.cost))


@pytest.mark.parametrize("seed", range(20))
def test_no_engine_alone_is_cheaper(seed: int) -> None:
    third = (CARD, FakeEngine("other", ("cpu",)))[seed % 2]
    never = (("tanh",), ("exp", "neg"), ())[seed % 3]
    for engines in ((HOST, FakeSegments(never=never)), (FakeSegments(never=never), HOST, third)):
        costs = model(seed, segment=10 ** np.random.default_rng(seed).uniform(-6, -3))
        assigner = Assigner(random_graph(seed, 40), Candidates(engines), costs)
        pruner = Pruner(assigner)
        found = pruner.price(pruner.best())
        alone = [pruner.price(a) for a in assigner.alone()]
        assert alone and found <= min(alone) * (1 + 1e-9)


def several(seed: int) -> tuple[Sequence[Any], CostModel]:
    """Three or four engines in up to three memories, with and without costs of segments."""
    rng = np.random.default_rng(seed + 1000)

    def rates() -> Rates:
        start = 0.0 if rng.random() < 0.4 else 10 ** rng.uniform(-6, -3.5)
        return Rates(*(10 ** rng.uniform(8, 11, 2)), 1e-6, start)

    def link() -> MemoryLink:
        return MemoryLink(10 ** rng.uniform(-6.5, -4.5), 10 ** rng.uniform(8, 10))

    card = FakeEngine("card", ("card",), never=(Exp,) if seed % 2 else ())
    other = FakeEngine("other", ("other",), never=(Tanh,) if seed % 3 else ())
    fake = FakeSegments(never=("neg",) if seed % 5 else ())
    sets = (HOST, card, other), (HOST, card, fake), (fake, HOST, other), (HOST, fake, card, other)
    listed = {name: rates() for name in ("card", "other", "fake")}
    host = Rates(*(10 ** rng.uniform(8, 11, 2)), 1e-6)
    return sets[seed % 4], CostModel({**listed, "host": host}, link=link(), handover=link())


def greedily(assigner: Assigner) -> dict[Node, int]:
    """Every node, in order, where it and the way of its operands cost least."""
    found: dict[Node, int] = {}
    for node in assigner.graph.nodes:
        costs = []
        for domain in range(len(assigner.domains)):
            sources = {
                v: assigner.domains.home if v.producer is None else found[v.producer]
                for v in node.inputs
            }
            ways = sum(assigner.crossing(v, s, domain) for v, s in sources.items())
            costs.append(assigner.seconds(node, domain) + ways)
        found[node] = costs.index(min(costs))
    return found


@pytest.mark.parametrize("seed", range(24))
def test_small_programs_are_near_the_optimum_segments_included(seed: int) -> None:
    """Of 80 seeds four were above it, one of them by 11 %."""
    engines, costs = several(seed)
    nodes = 4 + seed % 3 if len(engines) > 3 else 5 + seed % 3
    assigner = Assigner(random_graph(seed, nodes), Candidates(engines), costs)
    pruner = Pruner(assigner)
    best = brute_force(assigner, pruner.price)
    assert best * (1 - 1e-9) <= pruner.price(pruner.best()) <= 1.1 * best


@pytest.mark.parametrize("seed", range(16))
def test_nothing_greedy_is_cheaper(seed: int) -> None:
    """In one of 80 small programs placing node after node was."""
    for nodes in (6, 60):
        engines, costs = several(seed)
        assigner = Assigner(random_graph(seed, nodes), Candidates(engines), costs)
        pruner = Pruner(assigner)
        limit = pruner.price(pruner.best()) * (1 - 1e-9)
        for other in (greedily(assigner), assigner.first(), *assigner.alone()):
            assert limit <= pruner.price(other)


def test_moving_nodes_leaves_claims_whole() -> None:
    """A claim runs on one engine, also where half of it elsewhere would save most."""

    def wants(graph: Graph) -> Sequence[Collection[Node]]:
        return [[n for n in graph.nodes if n.op.name in ("exp", "neg", "tanh", "add")]]

    graph = diamond()
    fake = Claiming(wants)
    for seed in range(12):
        parts, _ = run(graph, (HOST, CARD, fake), several(seed)[1])
        found = {n.op.name: e for n, e in parts.engines().items()}
        assert len({found[name] for name in ("exp", "neg", "tanh", "add")}) == 1


def test_a_small_program_stays_in_one_piece() -> None:
    """What one op would save does not pay for handing its operands over."""
    graph = trace_body(lambda x: Neg()(Exp()(Neg()(Matmul()(x, x)))), [SQUARE], "g")
    quick = Rates(1e12, 1e12, 1e-7, 1e-5)
    costs = CostModel({"host": Rates(1e11, 1e10, 1e-6), "fake": quick})
    parts, _ = run(graph, (HOST, FakeSegments(never=("exp",))), costs)
    assert [s.engine for s in parts.segments] == ["host"]


def test_programs_whose_arguments_are_shared_pay_nothing_for_them() -> None:
    graph = trace_body(lambda x: Neg()(x), [SQUARE], "g")
    costs = CostModel({"host": Rates(1e9, 1e9, 1e-6), "fake": Rates(1e10, 1e10, 0.0)})
    parts, _ = run(graph, (HOST, FakeSegments()), costs)
    assert [s.engine for s in parts.segments] == ["fake"]


def test_copies_are_counted_in_the_report() -> None:
    graph = trace_body(lambda x: Matmul()(Matmul()(x, x), x), [SQUARE], "g")
    fast = {"host": Rates(1e8, 1e9, 1e-6), "card": Rates(1e12, 1e12, 1e-6)}
    parts, report = run(graph, (HOST, CARD), CostModel(fast, link=MemoryLink(1e-6, 1e10)))
    (copies,) = [d for d in report.decisions if d.subject == "copies between memories"]
    assert (copies.outcome, copies.reason) == ("2", f"{2 * 64 * 64 * 4} bytes")
    assert [n.op.name for n in parts.graph.nodes].count("end") == 2


# -- what segments become ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_with_segments_compute_the_same(seed: int) -> None:
    graph = random_graph(seed, 25)
    fake = FakeSegments(never=(("exp",), ("neg", "tanh"), ("matmul",))[seed % 3])
    parts, _ = run(graph, (HOST, fake), CostModel({"host": Rates(1e9, 1e9, 1e-6)}))
    made = leave_to_host(parts, (HOST, fake), "host")
    verify(made)
    groups = [n for n in made.nodes if isinstance(n.op, Fused)]
    assert len(groups) == sum(s.engine == "fake" for s in parts.segments) > 0
    given = [np.full(t.shape, 0.01, np.float32) for t in graph.input_types]
    for x, y in zip(evaluate(graph, given), evaluate(made, given), strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_follows_from_frozen_inputs_is_in_the_segment() -> None:
    def body(x: Any, w: Any) -> Any:
        scale = Exp()(w) * 0.5
        return Matmul()(Tanh()(Matmul()(x, scale)), scale)

    graph = trace_body(body, [SQUARE, SQUARE], "g")
    fake = FakeSegments(never=("tanh",))
    parts, _ = run(graph, (HOST, fake), frozen=graph.inputs[1:])
    made = leave_to_host(parts, (HOST, fake), "host")
    bodies = [[n.op.name for n in getattr(x.op, "body", made).nodes] for x in made.nodes]
    assert len(made.nodes) == 3
    assert bodies[0] == bodies[2] == ["exp", "constant", "mul", "matmul"]


def test_regions_of_control_flow_stay_with_engines_of_single_ops() -> None:
    def body(x: Any) -> Any:
        return x.builder.cond(x.sum() > 1.0, lambda a: Exp()(a), lambda a: Neg()(a), [x])[0] + x

    parts, _ = run(trace_body(body, [SQUARE], "g"), (HOST, FakeSegments()))
    assert {n.op.name: e for n, e in parts.engines().items()}["cond"] == "host"


# -- claims ------------------------------------------------------------------------------------


def diamond() -> Graph:
    """a -> (b, c) -> d, and e beside them."""

    def body(x: Any) -> Any:
        a = Exp()(x)
        return Add()(Neg()(a), Tanh()(a)), Mul()(x, x)

    return trace_body(body, [SQUARE], "diamond")


def named(graph: Graph, *names: str) -> frozenset[Node]:
    return frozenset(n for n in graph.nodes if n.op.name in names)


def test_a_claim_is_cut_back_to_what_runs_in_one_piece() -> None:
    graph = diamond()
    kept = convex(graph, named(graph, "exp", "neg", "add", "mul"))
    assert [n.op.name for n in kept] == ["exp", "neg", "mul"]  # add waits for tanh.
    whole = named(graph, "exp", "neg", "tanh", "add")
    assert set(convex(graph, whole)) == whole


def test_claims_that_wait_for_one_another_are_cut_back() -> None:
    def body(x: Any, y: Any) -> Any:
        return Tanh()(Exp()(x)), Mul()(Neg()(y), y), Exp()(Neg()(y))

    graph = trace_body(body, [SQUARE, SQUARE], "g")
    first_exp, tanh, neg, mul, _, last_exp = graph.nodes
    unit = (first_exp, mul)
    order = Claims(units=[unit]).order(graph)
    place = {n: i for i, u in enumerate(order) for n in u}
    assert place[neg] < place[first_exp] == place[mul] < place[tanh]
    # exp -> tanh and neg -> mul: each unit would need the other one first.
    assert convex(graph, frozenset((tanh, neg)), [unit]) == (neg,)
    assert set(convex(graph, frozenset((tanh, last_exp)), [unit])) == {tanh, last_exp}


def test_claims_are_all_or_nothing() -> None:
    graph = diamond()
    engine = Claiming(lambda g: [named(g, "exp", "neg", "tanh", "add")])
    parts, _ = run(graph, (HOST, engine))
    assert {n.op.name: e for n, e in parts.engines().items()} == {
        **dict.fromkeys(("exp", "neg", "tanh", "add"), "fake"), "mul": "host",
    }  # fmt: skip
    dear = CostModel({"host": Rates(1e9, 1e9, 1e-6), "fake": Rates(1e8, 1e8, 1e-6)})
    parts, _ = run(graph, (HOST, engine), dear)
    assert {s.engine for s in parts.segments} == {"host"}


def test_one_op_that_is_forced_out_takes_its_claim_along() -> None:
    engine = Claiming(lambda g: [named(g, "exp", "neg", "tanh", "add"), named(g, "mul")])
    parts, report = run(diamond(), (HOST, engine, FakeEngine("reference", ("cpu",))),
                        force_fallback=("tanh",))  # fmt: skip
    where = {n.op.name: e for n, e in parts.engines().items()}
    assert where.pop("tanh") == "reference"
    assert where.pop("mul") == "fake"
    assert "fake" not in where.values()
    assert any("force_fallback names tanh" in d.reason for d in report.decisions)


def test_what_is_not_claimed_is_not_given() -> None:
    parts, report = run(diamond(), (Claiming(lambda g: [named(g, "mul")]), HOST))
    assert [s.engine for s in parts.segments if s.engine == "fake"] == ["fake"]
    assert any("fake does not claim it" in d.reason for d in report.decisions)


def test_the_report_tells_of_cuts_and_defects() -> None:
    _, report = run(diamond(), (HOST, Claiming(lambda g: [named(g, "exp", "neg", "add")])))
    assert any(d.subject == "claim of fake, 3 nodes" and d.outcome == "2" for d in report.decisions)

    def broken(graph: Graph) -> Any:
        raise KeyError("x")

    parts, report = run(diamond(), (HOST, Claiming(broken)))
    assert {s.engine for s in parts.segments} == {"host"}
    assert any("claim() failed: KeyError" in d.reason for d in report.decisions)


@pytest.mark.parametrize("seed", range(15))
def test_random_claims_run_in_one_piece(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def wants(graph: Graph) -> list[list[Node]]:
        parts = rng.integers(0, 4, len(graph.nodes))
        return [[n for n, p in zip(graph.nodes, parts, strict=True) if p == i] for i in (1, 2, 3)]

    graph, engine = random_graph(seed, 30), Claiming(wants)
    parts, _ = run(graph, (HOST, engine))
    made = leave_to_host(parts, (HOST, engine), "host")
    verify(made)
    given = [np.full(t.shape, 0.01, np.float32) for t in graph.input_types]
    for x, y in zip(evaluate(graph, given), evaluate(made, given), strict=True):
        np.testing.assert_array_equal(x, y)
