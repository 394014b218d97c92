"""Sizes that PyTorch leaves open: one graph and the engine's plans for all of them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from treadle.engine.extents import plans  # noqa: E402
from treadle.interop.torch import left_to_torch  # noqa: E402
from treadle.interop.torch.parts import CompiledPart  # noqa: E402


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier process compiled would stand in the place of plans."""
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[CompiledPart]:
    """Parts that are made from now on."""
    made: list[CompiledPart] = []
    init = CompiledPart.__init__

    def noted(self: CompiledPart, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(CompiledPart, "__init__", noted)
    return made


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = left_to_torch()
    yield
    known = {(x.operator, x.nodes) for x in before}
    new = {x.operator for x in left_to_torch() if (x.operator, x.nodes) not in known}
    # PyTorch reads data.
    data = {"(not captured)", "index.Tensor", "nonzero.default", "_local_scalar_dense.default"}
    data |= {x.operator for x in left_to_torch() if x.reason.startswith("data decide")}
    assert new - data == set()


def gradients(model: Any, run: Any, *inputs: Any) -> list[Any]:
    given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    made = run(*given)
    wanted = [*model.parameters(), *(x for x in given if x.requires_grad)]
    return [made, *torch.autograd.grad((made**2).sum(), wanted)]


def compare(model: Any, run: Any, *inputs: Any) -> None:
    pairs = zip(gradients(model, run, *inputs), gradients(model, model, *inputs), strict=True)
    for ours, theirs in pairs:
        most = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-5 * most)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.layer(self.embed(tokens)))


def test_a_transformer_has_one_graph_and_a_plan_for_each_range_of_lengths(
    programs: list[CompiledPart],
) -> None:
    model, counter = Language(), CompileCounterWithBackend("treadle")
    run = torch.compile(model, backend=counter, dynamic=True)
    frames = []
    for length in (5, 9, 11, 15, 20, 33, 100):
        compare(model, run, torch.randint(0, 30, (2, length)))
        frames.append((counter.frame_count, len(programs)))
    assert len(set(frames)) == 1
    for program in programs:
        (variant,) = program.variants
        assert not variant.plans.alone and len(variant.plans.regimes) == 2


def test_the_second_size_makes_a_symbol_and_further_ones_nothing(
    programs: list[CompiledPart],
) -> None:
    model, counter = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)), "treadle"
    counted = CompileCounterWithBackend(counter)
    run = torch.compile(model, backend=counted)
    for rows in (3, 7, 8, 9, 12, 2, 14):
        compare(model, run, torch.randn(rows, 4))
    assert counted.frame_count == 2
    assert [len(p.variants) for p in programs] == [1, 1, 1, 1]
    # Products of at most 6 rows add in another order.
    assert max(len(p.variants[0].plans.regimes) for p in programs[2:]) <= 3


def test_marked_sizes_have_their_bounds(programs: list[CompiledPart]) -> None:
    run = torch.compile(lambda x: torch.softmax(x, 0) * x.shape[0], backend="treadle")
    for rows in (4, 6):
        x = torch.randn(rows, 3)
        torch._dynamo.mark_dynamic(x, 0, min=3, max=12)
        torch.testing.assert_close(run(x), torch.softmax(x, 0) * rows)
    (program,) = programs
    assert [str(k.low) + " " + str(k.high) for k in program._symbols.values()] == ["3 12"]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: x.reshape(x.shape[0] * 2, 2)[: x.shape[0] // 2] + x.shape[0] % 3,
    "real numbers": lambda x: x * (x.shape[0] ** -0.5) + (2.5 * x.shape[0]) / 3,
    "parts": lambda x: torch.cat([x[1:], x[:-1], x[-2:], x[:, 1:3].repeat(1, 2)]),
    "ranges": lambda x: x + torch.arange(x.shape[0])[:, None] + torch.ones(x.shape[0], 1),
    "statistics": lambda x: (x.var(0), x.std(1), x.mean(), x.norm(dim=0), *torch.var_mean(x, 0)),
    "orders": lambda x: (x.flip(0), x.roll(1, 0), x.cumsum(0), x.sort(0)[0], x.topk(2, 0)[0]),
    "triangles": lambda x: (x @ x.t()).tril().masked_fill(torch.eye(x.shape[0]) > 0, 0.5),
    "padding": lambda x: F.pad(x, (1, 0, 2, 3)),
    "several": lambda x: tuple(
        y * 2 for y in (x.unbind(1)[1], x.chunk(2, 1)[1], x[-1], x[0], x.expand(3, -1, -1))
    ),
    "losses": lambda x: (F.cross_entropy(x, x.argmax(1)), F.mse_loss(x, x.flip(0)), x.logsumexp(0)),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None], x[None], x[None], is_causal=True
    ),
    "masks": lambda x: torch.where(x > 0, x, torch.zeros_like(x)).index_put(
        (x[:, 0] > 0,), x[0, 0]
    ),
    "strides": lambda x: (x.t() * 2, x[:, None].transpose(0, 2) + 1),
    "gathered": lambda x: (
        x[x.argmax(0)],
        x.gather(0, x.argsort(0)),
        x.index_select(0, x.argmax(0)),
    ),
    "fronts": lambda x: (x[: x.shape[0] - 2], torch.cat([x[:0], x])),
    "draws": lambda x: (F.dropout(x, 1.0), torch.rand(x.shape[0]).clamp(2, 3)),
    "sizes": lambda x: (x.exp(), x.shape[0] * 2, x.new_zeros(x.shape[0] - 1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_several_sizes(name: str, programs: list[CompiledPart]) -> None:
    function = FUNCTIONS[name]
    run = torch.compile(function, backend="treadle", dynamic=True, fullgraph=True)
    for rows in (5, 6, 4, 17, 21):
        x = torch.randn(rows, 4)
        made, expected = run(x), function(x)
        for ours, theirs in zip(
            *(r if isinstance(r, tuple) else (r,) for r in (made, expected)), strict=True
        ):
            if isinstance(theirs, torch.Tensor):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
                assert ours.stride() == theirs.stride() or ours.numel() == 0
            else:
                assert ours == theirs
    (program,) = programs
    (variant,) = program.variants
    assert not variant.plans.alone


def test_a_network_with_batch_norm_and_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).eval()
    run = torch.compile(model, backend="treadle", dynamic=True)
    for batch, size in ((2, 12), (3, 12), (3, 15), (5, 20)):
        compare(model, run, torch.randn(batch, 3, size, size))


def test_channels_last_at_several_sizes() -> None:
    model = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
    run = torch.compile(model, backend="treadle", dynamic=True)
    for batch, size in ((2, 8), (3, 9)):
        x = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
        made, expected = run(x), model(x)
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
        assert made.stride() == expected.stride()


def test_sizes_that_data_decide(programs: list[CompiledPart]) -> None:
    def kept(x: Any) -> Any:
        found = x[x > 0]
        return (found * 2).softmax(0), found.sum() / found.shape[0]

    run = torch.compile(kept, backend="treadle")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for rows in (6, 7, 40):
            x = torch.randn(rows, 4)
            for ours, theirs in zip(run(x), kept(x), strict=True):
                torch.testing.assert_close(ours, theirs)
    assert programs and all(len(program.variants) == 1 for program in programs)


def test_numbers_that_data_decide() -> None:
    def repeated(x: Any, count: Any) -> Any:
        n = count.item()
        torch._check(n >= 2)
        torch._check(n < 100)
        return x.sum() * torch.ones(n) + n

    run = torch.compile(repeated, backend="treadle")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for n in (3, 5, 20):
            x = torch.randn(4)
            torch.testing.assert_close(run(x, torch.tensor(n)), repeated(x, torch.tensor(n)))


@pytest.mark.parametrize("values", [(-5, 0, 1, 2, 7, 2**40), (-5.5, 0.0, torch.nan)])
def test_whole_and_real_numbers_that_data_decide(values: tuple[Any, ...]) -> None:
    def function(x: Any, y: Any) -> Any:
        number = x.item()
        return y * 2 + number, torch.full((2,), number)

    run = torch.compile(function, backend="treadle", fullgraph=True)
    y = torch.randn(3)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for value in values:
            given = torch.tensor([value]), y
            torch.testing.assert_close(run(*given), function(*given), equal_nan=True)


def test_an_extent_that_is_none_or_one() -> None:
    def function(x: Any, y: Any) -> Any:
        n = x.item()
        torch._check(n >= 0)
        torch._check(n <= 1)
        return torch.ones(n) * 2, y[:n]

    run = torch.compile(function, backend="treadle", fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for n in (1, 0):
            given = torch.tensor([n]), torch.randn(3)
            torch.testing.assert_close(run(*given), function(*given))


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_what_is_asserted_of_sizes_that_data_decide_is_looked_at_in_each_call() -> None:
    def function(x: Any) -> Any:
        places = x.nonzero()
        torch._check(places.size(0) == 4)
        return places + 3

    x = torch.tensor([0, 1, 3, 4, 2, 0, 0])
    compiled = torch.compile(function, backend="treadle", fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x))
    with pytest.raises(RuntimeError, match="assertion failed"):
        compiled(torch.zeros_like(x))  # the program is for four rows


def test_threads_with_sizes_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    run = torch.compile(model, backend="treadle", dynamic=True)
    run(torch.randn(3, 4))

    def work(rows: int) -> float:
        x = torch.randn(rows, 4)
        worst: float = max((run(x) - model(x)).abs().max().item() for _ in range(5))
        return worst

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(2, 30))) < 1e-5


def test_sizes_that_became_numbers_are_no_tensors() -> None:
    """PyTorch's decompositions may settle a symbol after a graph has it as an argument."""
    graph = torch.fx.Graph()
    count, x = graph.placeholder("count"), graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.view.default, (x, [count, 2]))
    graph.output((made,))
    for node, value in zip((count, x, made), (3, torch.empty(6), torch.empty(3, 2)), strict=True):
        node.meta["val"] = value
    program = CompiledPart(torch.fx.GraphModule({}, graph), {})
    given = torch.arange(6.0)
    (found,) = program.run([3, given])
    assert torch.equal(found, given.view(3, 2))


FILLS: dict[str, Callable[..., Any]] = {
    "full of a size": lambda x: torch.full((2,), x.shape[0]) + x.sum(),
    "full of a root": lambda x: torch.full((2,), x.shape[0] ** 0.5) + x.sum(),
    "clamp": lambda x: torch.clamp(x, max=x.shape[0] * 0.25),
    "lerp": lambda x: torch.lerp(x, x * 2, 1 / x.shape[0]),
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 1 / x.shape[0]),
    "masked_fill": lambda x: x.masked_fill(x > 0, x.shape[0] / 2),
    "remainder of a number": lambda x: torch.remainder(7, x),
    "shifted number": lambda x: 100 >> x.int().abs(),
}


@pytest.mark.parametrize("case", FILLS)
def test_numbers_made_of_sizes_where_tensors_may_be(case: str) -> None:
    torch._dynamo.reset()
    before = left_to_torch()
    run = torch.compile(FILLS[case], backend="treadle", dynamic=True)
    for n in (5, 6, 9):
        x = torch.randn(n)
        torch.testing.assert_close(run(x), FILLS[case](x))
    assert left_to_torch() == before


def test_numbers_made_of_sizes_that_an_op_has_fixed_are_left() -> None:
    """They used to raise while the program was compiled."""
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: torch.nn.functional.softplus(x, beta=x.shape[0] / 4),
        backend="treadle",
        dynamic=True,
    )
    for n in (5, 6):
        x = torch.randn(n)
        torch.testing.assert_close(run(x), torch.nn.functional.softplus(x, beta=n / 4))


LENGTHS = torch.tensor([2, 3])
FOUND: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows to a maximum": (
        lambda x, k: torch.softmax(x * 3, -1)[:, : k.max().item()].sum(0) + 1,
        (LENGTHS,),
    ),
    "rows between": (lambda x, k: x[k[0].item() : k[1].item()].relu() * 2, (LENGTHS,)),
    "filled": (lambda x: torch.full((x.shape[0], 2), x.sum().item() * 0.5) + x[:, :2], ()),
    "as many as a sum": (lambda x: torch.zeros(int(x.abs().sum().item()) % 7 + 2) + 1, ()),
}


@pytest.mark.parametrize("name", FOUND)
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_numbers_that_data_decide_are_left_to_pytorch(name: str) -> None:
    """The compiler ended with "no argument says the size u1", and so did the program."""
    function, others = FOUND[name]
    compiled = torch.compile(function, backend="treadle", dynamic=True)
    for rows in (4, 5, 9):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x, *others), function(x, *others))
