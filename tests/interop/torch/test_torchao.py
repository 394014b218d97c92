"""Models that torchao has quantized, compiled: nothing stays with PyTorch."""

from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler, and torchao's
]

torch = pytest.importorskip("torch", reason="needs PyTorch")
q = pytest.importorskip("torchao.quantization", reason="needs torchao")

from torch import nn  # noqa: E402
from torchao.quantization.granularity import PerAxis, PerGroup  # noqa: E402

from treadle.interop.torch import backend, left_to_torch, parts  # noqa: E402

GROUPS = {"weight_dtype": torch.int4, "granularity": PerGroup(32)}
CONFIGS: dict[str, tuple[Any, bool]] = {
    "weights in 8 bits": (q.Int8WeightOnlyConfig(), False),
    "weights in 8 bits, a scale each row": (
        q.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0)),
        False,
    ),
    "weights in 4 bits, in groups": (q.IntxWeightOnlyConfig(**GROUPS), False),
    "8 bits by 8 bits": (q.Int8DynamicActivationInt8WeightConfig(), True),
    "8 bits by 4 bits, in groups": (
        q.Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
        False,
    ),
}


class Layer(nn.Module):  # type: ignore[misc, name-defined]
    """A layer of attention, and one of a network."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.outputs = nn.Linear(64, 192), nn.Linear(64, 64)
        self.norm, self.wide, self.narrow = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Any) -> Any:
        q, k, v = self.inputs(self.norm(x)).unflatten(-1, (4, 48)).transpose(1, 2).chunk(3, -1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outputs(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.silu(self.wide(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_quantized_models(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config, on_integers = CONFIGS[name]
    graphs: list[Any] = []
    init = parts.Variant.__init__

    def noted(self: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        graphs.append(graph)
        init(self, graph, *args, **kwargs)

    monkeypatch.setattr(parts.Variant, "__init__", noted)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Layer().eval().to(dtype), torch.randn(2, 5, 64, dtype=dtype)
    q.quantize_(model, config)
    before = left_to_torch()
    run = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        for rows in (5, 3, 4):
            found, expected = run(x[:, :rows]), model(x[:, :rows])
            # A level of an activation next to a tie may be one apart.
            limit = (0.02 if "8 bits by" in name else 1e-5) if dtype is torch.float32 else 0.03
            assert (found - expected).abs().max() <= limit * expected.abs().max()
    assert left_to_torch() == before
    (graph, *_) = graphs
    taken = {t.dtype.name for t in graph.input_types}
    kinds = [node.op.name for node in graph.nodes]
    assert "int8" in taken  # Weights are given as bytes, and not put back to real numbers first.
    assert kinds.count("int_matmul") == (4 if on_integers else 0)
