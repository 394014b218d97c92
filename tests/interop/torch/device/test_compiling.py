"""`torch.compile(backend="treadle")` for tensors on Treadle's devices."""

from typing import Any

import pytest

import treadle

torch = pytest.importorskip("torch")

from treadle.base.errors import ShapeError  # noqa: E402
from treadle.engine.extents import plans  # noqa: E402
from treadle.interop.torch import from_exported, left_to_torch, parts  # noqa: E402

pytestmark = [
    pytest.mark.torch_device,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),  # of what Dynamo imports
]
nn = torch.nn


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="treadle", **options)


class Attending(nn.Module):  # type: ignore[misc, name-defined]
    """A layer of attention and one of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        q, k, v = self.inputs(x).chunk(3, -1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.outputs(nn.functional.gelu(self.norm(x + seen))).mean(1)


def _network() -> Any:
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.GELU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.LayerNorm(72), nn.Linear(72, 4))


def _trained(device: str, *, wrapped: bool) -> list[Any]:
    """Weights after three steps of a network and an optimizer, compiled or not."""
    model = _network().to(device)
    torch.manual_seed(2)
    x, y = torch.randn(8, 3, 8, 8).to(device), torch.arange(8).remainder(4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))

    def loss_of(x: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(model(x), y)

    run = compiled(loss_of) if wrapped else loss_of
    step = compiled(optimizer.step) if wrapped else optimizer.step
    for _ in range(3):
        optimizer.zero_grad()
        run(x, y).backward()
        step()
    return [v.detach().cpu() for v in model.state_dict().values()]


def test_training_with_a_compiled_step_gives_the_cpus_weights(device: str) -> None:
    for ours, theirs in zip(
        _trained(device, wrapped=True), _trained("cpu", wrapped=False), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_results_stay_on_the_device_with_pytorchs_strides(device: str) -> None:
    def call(x: Any, y: Any) -> Any:
        turned = x.t() @ y
        return turned.t() * 2, turned.exp(), torch.full_like(x, 3)

    x, y = torch.randn(4, 6), torch.randn(4, 5)
    before = {(left.operator, left.reason) for left in left_to_torch()}
    found = compiled(call)(x.to(device), y.to(device))
    for ours, theirs in zip(found, call(x, y), strict=True):
        assert str(ours.device) == device and ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)
    assert {(left.operator, left.reason) for left in left_to_torch()} == before


def test_arguments_may_be_views_conjugates_and_numbers_of_the_cpu(device: str) -> None:
    def call(x: Any, z: Any, number: Any) -> Any:
        return (x * number).sum(0), torch.view_as_real(z * 2)

    x, z = torch.randn(6, 4), torch.randn(3, dtype=torch.complex64)
    number = torch.tensor(3.0)
    expected = call(x.t()[1:, ::2], z.conj(), number)
    found = compiled(call)(x.to(device).t()[1:, ::2], z.to(device).conj(), number)
    torch.testing.assert_close([v.cpu() for v in found], list(expected))


def test_writes_into_arguments_are_seen(device: str) -> None:
    x = torch.ones(4, device=device)
    view = x[1:3]
    compiled(lambda v: v.mul_(3).add_(1))(view)
    assert x.tolist() == [1, 4, 4, 1]


def test_sizes_change_and_draws_repeat(device: str) -> None:
    run = compiled(lambda x: nn.functional.dropout(x.relu(), 0.5), dynamic=True)
    for rows in (3, 7, 20):
        x = torch.ones(rows, 64, device=device)
        torch.manual_seed(5)
        first = run(x)
        torch.manual_seed(5)
        assert torch.equal(run(x), first) and 0 < (first == 0).sum().item() < x.numel()
        assert set(first.cpu().flatten().tolist()) == {0.0, 2.0}
    torch.treadle.manual_seed_all(9)
    assert not torch.equal(run(x), first)


def test_a_model_has_one_graph_and_programs_for_ranges_of_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the host's memory, as on the CPU."""
    made: list[parts.CompiledPart] = []
    init = parts.CompiledPart.__init__

    def noted(self: parts.CompiledPart, *given: Any) -> None:
        init(self, *given)
        made.append(self)

    monkeypatch.setattr(parts.CompiledPart, "__init__", noted)
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)
    torch._dynamo.reset()
    model = Attending().to("treadle:0")
    run = compiled(model, dynamic=True)
    counts = set()
    for length in (16, 20, 33, 100):
        x = torch.randn(2, length, 8, device="treadle:0")
        found, expected = run(x), model(x)
        gradients = [
            torch.autograd.grad(y.square().sum(), model.parameters()) for y in (found, expected)
        ]
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=1e-3, atol=1e-3)
        counts.add(len(made))
    assert counts == {2}  # forward and backward
    for program in made:
        (variant,) = program.variants
        assert not variant.plans.alone and len(variant.plans.regimes) <= 2


def test_programs_are_exported_with_open_sizes(device: str) -> None:
    model = Attending().eval().to(device)
    length = torch.export.Dim("length", min=2, max=64)
    x = torch.randn(2, 7, 8)
    program = torch.export.export(model, (x.to(device),), dynamic_shapes=({1: length},))
    run, module = compiled(program.module(), dynamic=True), from_exported(program)
    for n in (7, 20):
        y = torch.randn(2, n, 8)
        expected = model(y.to(device)).detach().cpu()
        torch.testing.assert_close(run(y.to(device)).cpu(), expected, rtol=1e-4, atol=1e-5)
        found = module(treadle.tensor(y.numpy())).numpy()
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ShapeError):
        module(treadle.tensor(torch.randn(2, 65, 8).numpy()))


def test_gradients_without_memory_reach_programs(device: str) -> None:
    x = torch.randn(4).to(device).detach().requires_grad_()
    compiled(lambda v: v * 2)(x).sgn().sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 0]


def test_a_graph_over_devices_has_programs_on_each(devices: dict[str, str]) -> None:
    one, two = devices["toy0"], devices["toy1"]

    def call(x: Any) -> Any:
        there = (x.exp() * 2).to(two)
        return (there + 1).log().to("treadle:0").relu()

    x = torch.randn(5)
    expected = x.clone().requires_grad_()
    call_on_cpu = ((expected.exp() * 2) + 1).log().relu()
    call_on_cpu.sum().backward()
    given = x.to(one).detach().requires_grad_()
    with treadle.fallback("silent"):
        found = compiled(call)(given)
        found.sum().backward()
    assert str(found.device) == "treadle:0" and str(given.grad.device) == one
    torch.testing.assert_close(found.detach().cpu(), call_on_cpu.detach())
    torch.testing.assert_close(given.grad.cpu(), expected.grad)


def test_what_has_no_counterpart_runs_between_programs(device: str) -> None:
    def call(x: Any) -> Any:
        return torch.nextafter(x * 2, x) + 1

    x = torch.randn(5)
    torch.testing.assert_close(compiled(call)(x.to(device)).cpu(), call(x))


def test_mixed_precision_is_compiled(device: str) -> None:
    def call(x: Any) -> Any:
        with torch.autocast("treadle", dtype=torch.bfloat16):
            return (x @ x).softmax(0)

    x = torch.randn(4, 4)
    found = compiled(call)(x.to(device))
    low = (x.bfloat16() @ x.bfloat16()).float().softmax(0)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.cpu(), low, rtol=2e-2, atol=2e-2)


def test_tensors_of_the_cpu_are_compiled_as_before() -> None:
    x = torch.randn(4, requires_grad=True)
    y = compiled(lambda v: v.sin() * 2)(x)
    y.sum().backward()
    assert y.device.type == "cpu" and x.grad is not None
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_what_is_not_captured_runs_op_by_op_and_is_left_alone(device: str) -> None:
    """PyTorch captures nothing of this, and has Dynamo look at every frame that runs meanwhile."""
    losses: dict[str, list[float]] = {}
    for where in ("cpu", device):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 1)).to(
            where
        )
        x = torch.randn(16, 4).to(where)
        model.compile(backend="treadle" if where == device else "eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        torch._dynamo.utils.counters.clear()
        losses[where] = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            losses[where].append(loss.item())
        counted = torch._dynamo.utils.counters
        assert not counted["unimplemented"] and not counted["graph_break"], counted
    assert losses[device] == pytest.approx(losses["cpu"], rel=1e-4)


def test_operators_between_graphs_are_left_alone(device: str) -> None:
    def function(x: Any) -> Any:
        y = (x * 2).tanh()
        torch._dynamo.graph_break()
        z = y.flip(0) @ y.t()
        return torch.stack([z.sum() + i for i in range(y.nonzero().shape[0])])

    x = torch.tensor([[0.5, 0.0], [-1.0, 2.0]])
    run = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(run(x.to(device)).cpu(), function(x))
    with pytest.raises(RuntimeError):  # Afterwards code is captured as before.
        compiled(lambda x: torch._dynamo.graph_break() or x.view(3))(x.to(device))
    again = compiled(lambda x: x + 1, fullgraph=True)
    torch.testing.assert_close(again(x.to(device)).cpu(), x + 1)
    assert not left_to_torch() or all("view" not in row.operator for row in left_to_torch())


def test_results_that_lie_backwards_come_home(device: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    for axes in ((0,), (1,), (0, 1)):
        assert torch.equal(x.to(device).flip(axes).cpu(), x.flip(axes))


def test_functions_of_the_module_are_captured(device: str) -> None:
    def function(x: Any) -> Any:
        scale = 2 if torch.treadle.is_available() else 3
        return x * scale

    run = compiled(function, fullgraph=True)
    assert run(torch.ones(2, device=device)).cpu().tolist() == [2, 2]


def _beside(x: Any) -> Any:
    with torch.Stream(device="treadle:0"):
        y = x + 1
    return y * 2


def _after_an_event(x: Any) -> Any:
    event = torch.Event()
    event.record()
    y = x * 2 + 2
    event.wait()
    return y


@pytest.mark.parametrize("device", ["cpu", "treadle:0"])
def test_the_stream_is_asked_for_where_a_graph_reads_it(device: str, monkeypatch: Any) -> None:
    handed = torch._dynamo.graph_bytecode_inputs
    asked: list[Any] = []
    store = handed.store_user_object_weakrefs
    noted = lambda *given: asked.append(given) or store(*given)  # noqa: E731
    monkeypatch.setattr(handed, "store_user_object_weakrefs", noted)
    x = torch.ones(3, device=device)
    for function, reads in ((lambda x: (x + 1) * 2, 0), (_beside, 1), (_after_an_event, 1)):
        run = compiled(function)
        run(x)
        asked.clear()
        assert run(x).tolist() == [4.0] * 3
        assert len(asked) == reads


def test_branches_and_loops(device: str) -> None:
    """They are programs of the host, and PyTorch's on devices whose compilers have none."""

    def function(x: Any) -> Any:
        def turn(i: Any, y: Any) -> Any:
            more, less = lambda y: y * 0.9 - 0.1, lambda y: y.sin() + 0.2
            return i + 1, torch.cond(y.sum() > 0, more, less, (y,))

        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return torch.while_loop(lambda i, y: i < 7, turn, (start, x))[1] * 2

    torch._dynamo.reset()
    run = torch.compile(function, backend="treadle", fullgraph=True)
    for x in (torch.randn(6, 4).abs(), -torch.randn(6, 4).abs()):
        torch.testing.assert_close(run(x.to(device)).cpu(), function(x), rtol=1e-5, atol=1e-6)
