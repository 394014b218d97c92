"""Graphs of PyTorch's quantization run on integers, and give its levels."""

import importlib
from collections.abc import Mapping
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.engine.pipeline import Stages  # noqa: E402
from treadle.interop.torch import from_exported, left_to_torch  # noqa: E402
from treadle.interop.torch.parts import PartInstance, Variant  # noqa: E402

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
OPS = torch.ops.quantized_decomposed
BYTES = (0, 255, torch.uint8)
SIGNED = (-127, 127, torch.int8)


class Quantized(nn.Module):
    """What PT2E makes of a convolution and a linear layer: weights in int8, per channel."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"kernel": (8, 3, 3, 3), "matrix": (8, 5)}.items():
            weight = torch.randn(shape)
            axis = 0 if name == "kernel" else 1
            rest = [i for i in range(weight.ndim) if i != axis]
            scale = weight.abs().amax(rest) / 127
            zero = torch.zeros_like(scale, dtype=torch.int64)
            levels = OPS.quantize_per_channel(weight, scale, zero, axis, *SIGNED)
            for part, value in {"": levels, "_scale": scale, "_zero": zero}.items():
                self.register_buffer(name + part, value)

    def forward(self, x: Any) -> Any:
        def rounded(x: Any, scale: float, zero: int) -> Any:
            levels = OPS.quantize_per_tensor(x, scale, zero, *BYTES)
            return OPS.dequantize_per_tensor(levels, scale, zero, *BYTES)

        def weight(name: str, axis: int) -> Any:
            parts = (getattr(self, name + part) for part in ("", "_scale", "_zero"))
            return OPS.dequantize_per_channel(*parts, axis, *SIGNED)

        y = nn.functional.conv2d(rounded(x, 0.03, 128), weight("kernel", 0), padding=1)
        y = rounded(torch.relu(y), 0.11, 0).mean((2, 3))
        return rounded(rounded(y, 0.02, 3) @ weight("matrix", 1), 0.05, 100)


def within_a_level(found: Any, expected: Any) -> None:
    levels = np.abs(np.asarray(found) - np.asarray(expected)) / 0.05
    assert levels.max() <= 1.01 and (levels > 0.5).mean() < 0.2


def kinds(graph: Any) -> set[str]:
    """Ops of a graph as the engine runs it."""
    return {node.op.name for node in Stages(graph).prepared.graph.nodes}


def test_what_is_compiled_has_pytorchs_levels() -> None:
    torch.manual_seed(0)
    model, x, before = Quantized(), torch.randn(4, 3, 9, 9), left_to_torch()
    with torch.no_grad():
        within_a_level(torch.compile(model, backend="treadle")(x), model(x))
    assert left_to_torch() == before


def test_products_between_roundings_are_on_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Variant] = []
    at = Variant.at

    def noted(self: Variant, extents: Mapping[str, int]) -> PartInstance | None:
        seen.append(self)
        return at(self, extents)

    monkeypatch.setattr(Variant, "at", noted)
    levels = OPS.quantize_per_tensor(torch.randn(8, 5), 0.02, 0, *SIGNED)

    def product(x: Any, levels: Any) -> Any:
        x = OPS.dequantize_per_tensor(x, 0.03, 128, *BYTES)
        y = torch.relu(x @ OPS.dequantize_per_tensor(levels, 0.02, 0, *SIGNED))
        return OPS.quantize_per_tensor(y, 0.05, 100, *BYTES)

    x = torch.randint(0, 256, (4, 8), dtype=torch.uint8)
    found, expected = torch.compile(product, backend="treadle")(x, levels), product(x, levels)
    assert (found.int() - expected.int()).abs().max() <= 1
    (part,) = seen
    assert "int_matmul" in kinds(part.graph)


def test_exported_programs_and_scales_that_are_chosen_while_running() -> None:
    class Chosen(nn.Module):
        def forward(self, x: Any) -> Any:
            scale, zero = OPS.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
            levels = OPS.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
            return levels, OPS.dequantize_per_tensor.tensor(
                levels, scale, zero, -128, 127, torch.int8
            )

    torch.manual_seed(0)
    x = torch.randn(5, 7)
    module = from_exported(torch.export.export(Chosen(), (x,)))
    levels, real = module(mge.tensor(x.numpy()))
    expected, wanted = Chosen()(x)
    assert np.abs(levels.numpy().astype(int) - expected.numpy().astype(int)).max() <= 1
    np.testing.assert_allclose(real.numpy(), wanted.numpy(), atol=0.05)
    model, x = Quantized(), torch.randn(4, 3, 9, 9)
    module = from_exported(torch.export.export(model, (x,)))
    within_a_level(module(mge.tensor(x.numpy())).numpy(), model(x))
    assert "kernel" in module.state_dict() and "kernel_zero" not in module.state_dict()
    (written,) = module._program._written.values()
    assert {"int_conv", "int_matmul"} <= kinds(written.graph)


def compiled_whole(function: Any, *inputs: Any) -> list[Any]:
    """Results and gradients, compiled, equal to the function's own; nothing stays with PyTorch."""
    torch._dynamo.reset()
    before = {(x.operator, x.reason): x.nodes for x in left_to_torch()}
    found = []
    for run in (torch.compile(function, backend="treadle", fullgraph=True), function):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        made = run(*given)
        if made.requires_grad:
            made.square().sum().backward()
        found.append([made, *(x.grad for x in given if x.requires_grad)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert {(x.operator, x.reason): x.nodes for x in left_to_torch()} == before
    return found[0]


SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.3, 0.05]), torch.tensor([0, 1, 2, -3], dtype=torch.int32)
ONE_ZERO = torch.tensor([3], dtype=torch.int32)
FAKED = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -12, 17),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[:1], ONE_ZERO, -12, 17),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 0, -12, 17),
}


@pytest.mark.parametrize("name", FAKED)
def test_training_with_roundings(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    x[0, 0] = 9.0  # beyond the limits: it gets no gradient
    _, grad = compiled_whole(FAKED[name], x.requires_grad_())
    assert grad[0, 0] == 0


@pytest.mark.parametrize("enabled", [0, 1])
def test_roundings_that_are_switched(enabled: int) -> None:
    def rounded(x: Any, on: Any) -> Any:
        return torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
            x, SCALES[:1], ONE_ZERO, on, -12, 17
        )[0]

    compiled_whole(rounded, torch.randn(4, 6).requires_grad_(), torch.tensor([enabled]))


def test_products_with_bytes() -> None:
    x = torch.randint(-127, 127, (17, 32), dtype=torch.int8)
    weight = torch.randint(-127, 127, (8, 32), dtype=torch.int8)
    compiled_whole(lambda x, w: torch._int_mm(x, w.t()), x, weight)
    packed = torch.ops.aten._weight_int8pack_mm
    compiled_whole(packed, torch.randn(4, 32), weight, torch.rand(8))
