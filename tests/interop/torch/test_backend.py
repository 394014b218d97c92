"""`torch.compile(..., backend="treadle")` computes what PyTorch computes, forward and backward."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from tests.interop.torch.networks import NETWORKS  # noqa: E402
from torch import nn  # noqa: E402

from treadle.base.errors import LoadError, UnsupportedOp  # noqa: E402
from treadle.interop.torch import backend, from_exported, left_to_torch  # noqa: E402
from treadle.jit import engines  # noqa: E402


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function: Any) -> Any:
    return torch.compile(function, backend=backend)


def left(before: list[Any]) -> set[str]:
    """Operators that were left to PyTorch since then."""
    known = {(x.operator, x.nodes) for x in before}
    return {x.operator for x in left_to_torch() if (x.operator, x.nodes) not in known}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=2),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5))

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x).flatten(1))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.layer(self.embed(tokens))).transpose(1, 2)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "cnn": (Classifier, lambda: torch.randn(4, 3, 12, 12), lambda: torch.randint(0, 5, (4,))),
    "transformer": (
        Language,
        lambda: torch.randint(0, 30, (2, 6)),
        lambda: torch.randint(0, 30, (2, 6)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_follows_the_same_curve_and_nothing_is_left(name: str) -> None:
    make, inputs, targets = MODELS[name]
    ours, x, y, before = make(), inputs(), targets(), left_to_torch()
    theirs = copy.deepcopy(ours)
    step = compiled(ours)
    optimizers = [torch.optim.Adam(m.parameters(), 0.01) for m in (ours, theirs)]
    curves: list[list[float]] = [[], []]
    for _ in range(4):
        for curve, run, optimizer in zip(curves, (step, theirs), optimizers, strict=True):
            loss = nn.functional.cross_entropy(run(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0][-1] < curves[0][0]
    assert left(before) == set()


def test_custom_ops_of_pytorch_are_left_to_it_and_refused_in_exported_programs() -> None:
    @torch.library.custom_op("treadle_tests::cubed", mutates_args=())
    def cubed(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x**3 * factor

    @cubed.register_fake
    def _(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.empty_like(x)

    class Around(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(cubed(x * 2, 0.5)) + 1

    before, x = left_to_torch(), torch.randn(4)
    torch.testing.assert_close(compiled(Around())(x), Around()(x))
    assert left(before) == {"treadle_tests.cubed.default"}
    with pytest.raises(UnsupportedOp, match=r"treadle_tests\.cubed"):
        from_exported(torch.export.export(Around(), (x,)))


def test_fields_of_networks_train_and_nothing_is_left() -> None:
    """Attention with masks, group norm, upsampling, writes in place, tied weights, an LSTM."""
    before = left_to_torch()
    for name, (make, inputs) in NETWORKS.items():
        torch._dynamo.reset()
        theirs, x = make().train(), inputs()
        mine = copy.deepcopy(theirs)
        found, expected = compiled(mine)(x), theirs(x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5, msg=name)
        for y in (found, expected):
            (y**2).sum().backward()
        for (key, ours), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            worst, most = (ours.grad - other.grad).abs().max(), other.grad.abs().max()
            assert worst <= 1e-4 * max(1.0, most), f"{name}: {key}"
    assert left(before) == set()


def test_assertions_of_captured_types_are_taken_out() -> None:
    def asserted(x: Any) -> Any:
        y = x * 2
        torch.ops.aten._assert_tensor_metadata.default(y, None, None, torch.float32)
        made = torch.empty_permuted((5, 4), (1, 0))
        return torch.sin(y.t()) + made.copy_(y.t())

    x, before = torch.randn(4, 5), left_to_torch()
    torch.testing.assert_close(compiled(asserted)(x), asserted(x))
    assert left(before) == set()


def test_a_mask_sets_one_value_in_ops_and_several_in_torch() -> None:
    def one(x: Any) -> Any:
        y = x.clone()
        y[y > 0] = 0
        return y * 2

    def several(x: Any) -> Any:
        y = x.clone()
        y[y > 0] = x[x > 0] * 3
        return y * 2

    x, before = torch.randn(4, 5), left_to_torch()
    torch.testing.assert_close(compiled(one)(x), one(x))
    assert left(before) == set()
    torch.testing.assert_close(compiled(several)(x), several(x))


def test_a_mask_over_the_first_axes() -> None:
    def rows(x: Any) -> Any:
        return x.index_put((x[:, 0] > 0,), torch.tensor(7.0)) + 1

    x = torch.randn(6, 3)
    torch.testing.assert_close(compiled(rows)(x), rows(x))


def test_several_values_behind_a_mask_are_left_to_torch() -> None:
    def put(x: Any, values: Any) -> Any:
        return x.index_put((x > 0,), values) + 1

    x, before = torch.tensor([1.0, -1.0, 2.0]), left_to_torch()
    values = torch.tensor([10.0, 20.0])
    torch.testing.assert_close(compiled(put)(x, values), put(x, values))
    reasons = {e.reason for e in left_to_torch() if e.operator == "index_put.default"}
    assert left(before) == {"index_put.default"}
    assert any("mask" in reason for reason in reasons)


@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.float32])
def test_remainders_have_the_signs_that_torch_gives_them(kind: Any) -> None:
    def remainders(x: Any, y: Any) -> Any:
        floor = torch.div(x, y, rounding_mode="floor")
        return torch.fmod(x, y), torch.remainder(x, y), floor, x.div(y, rounding_mode="trunc")

    before = left_to_torch()
    x = torch.tensor([7, -7, 7, -7, 6, -6, 0, 5], dtype=kind)
    y = torch.tensor([3, 3, -3, -3, 3, -3, -4, 5], dtype=kind)
    for ours, theirs in zip(compiled(remainders)(x, y), remainders(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert left(before) == set()


def bilinear(x: Any, scale: float) -> Any:
    return nn.functional.interpolate(
        x, scale_factor=scale, mode="bilinear", recompute_scale_factor=False
    )


@pytest.mark.parametrize("scale", [2.0, 1.7, 0.6])
def test_scales_that_are_no_ratio_of_extents_are_not_taken_for_one(scale: float) -> None:
    x = torch.randn(1, 2, 5, 7)
    torch.testing.assert_close(
        compiled(lambda given: bilinear(given, scale))(x), bilinear(x, scale), rtol=1e-4, atol=1e-5
    )


def test_inference_is_one_program() -> None:
    model = Classifier().eval()
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-5)


def test_what_has_no_counterpart_stays_with_torch_and_is_reported() -> None:
    before = left_to_torch()

    def mixed(x: Any) -> Any:
        return torch.nextafter(x * 2 + 1, x) + 1

    x = torch.eye(3)
    torch.testing.assert_close(compiled(mixed)(x), mixed(x))
    names = left(before)
    assert names and not any(n.startswith(("add", "mul")) for n in names)


def test_places_of_maxima_that_the_program_reads_are_true() -> None:
    def places(x: Any) -> Any:
        return nn.functional.max_pool2d(x, 2, return_indices=True)

    x = torch.randn(1, 2, 6, 6)
    for ours, theirs in zip(compiled(places)(x), places(x), strict=True):
        torch.testing.assert_close(ours, theirs)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "integers": lambda x: (x * 10).to(torch.int32) // 3 - (x * 7).to(torch.int64) % 4,
    "comparisons": lambda x: torch.where(x > 0, x, 2 * x).clamp(-1, 0.5),
    "shapes": lambda x: torch.cat([x.t()[1:, :2], x[:2, ::2].reshape(3, 2)[:, :2]]).flip(0),
    "reductions": lambda x: (x.amax(1), x.argmax(1), x.var(0), x.cumsum(1), x.norm(), x.any()),
    "indices": lambda x: (x[[0, 2, 1]], x.gather(1, (x > 0).long()), x[x.argmax(0) % 4, 1]),
    "powers": lambda x: (x**2, x.abs() ** 0.5, 2.0**x, torch.rsqrt(x.abs() + 1), x.round()),
    "halves": lambda x: (x.bfloat16() @ x.bfloat16().t()).float().softmax(1),
    "whole tensors": lambda x: (x.argmax(), x.argmin(), x.roll(3), x.max(), x.sum()),
    "strides": lambda x: (x.contiguous().as_strided((2, 2), (1, 3), 1), x.diagonal(1), x.diag()),
    "logarithms": lambda x: (x.abs().log2(), x.abs().log10(), x.exp2(), x.cumprod(0)),
    "bounds": lambda x: (torch.clamp(x, x - 1, x.mean(0)), *torch.var_mean(x, 1)),
    "sorted": lambda x: (*x.sort(1, descending=True), *x.topk(2, dim=0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_tensors(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(4, 5)
    found, expected = compiled(function)(x), function(x)
    for ours, theirs in zip(
        *(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True
    ):
        tolerance = (
            {"rtol": 2e-2, "atol": 2e-2} if name == "halves" else {"rtol": 1e-5, "atol": 1e-5}
        )
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_the_name_is_known_to_torch() -> None:
    def double(x: Any) -> Any:
        return x * 2

    run = torch.compile(double, backend="treadle")
    torch.testing.assert_close(run(torch.ones(3)), torch.full((3,), 2.0))


def test_segment_engines_that_are_asked_for_take_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="needs the extra openvino")
    from treadle.backends.openvino import backend as openvino

    taken: list[Any] = []
    compile_segment = type(openvino).compile_segment

    def noted(self: Any, graph: Any) -> Any:
        taken.append(graph)
        return compile_segment(self, graph)

    monkeypatch.setattr(type(openvino), "compile_segment", noted)
    monkeypatch.setattr(type(openvino), "load_segment", _not_kept)
    layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3)
    net = nn.Sequential(*layers).eval()
    run = torch.compile(net, backend="treadle")
    with engines("openvino", "cpu"), torch.no_grad():
        # From the second on PyTorch has a symbol in place of a number, of which it knows a range.
        for rows, compiled in ((4, 1), (7, 1), (9, 0)):
            x = torch.randn(rows, 3, 32, 32)
            taken.clear()
            torch.testing.assert_close(run(x), net(x), rtol=1e-4, atol=1e-5)
            assert len(taken) == compiled


def _not_kept(self: Any, blob: bytes) -> Any:
    raise LoadError("test", "what an earlier process kept is of no use here")


def test_truth_values_that_data_decide() -> None:
    def function(x: Any, y: Any) -> Any:
        return y * 2 + x.item()

    run = torch.compile(function, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for value in (True, False):
            given = torch.tensor([value]), torch.randn(3)
            torch.testing.assert_close(run(*given), function(*given))
    assert "add.Tensor" in {x.operator for x in left_to_torch()}  # no value says the 0 or 1
