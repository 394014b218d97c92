"""BatchNorm in 16 bits through `torch.compile(backend="treadle")`."""

import copy
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from treadle.interop.torch import backend, left_to_torch  # noqa: E402

LAST_PLACE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", LAST_PLACE, ids=str)
@pytest.mark.parametrize("mixed", [False, True], ids=["same", "mixed"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("shape", [(8, 6, 5, 5), (16, 6)], ids=str)
def test_batch_norm(shape: tuple[int, ...], training: bool, mixed: bool, dtype: Any) -> None:
    """In evaluation, and with weights of 32 bits, results have PyTorch's bits; else they may be a
    last place apart, where a mean or deviation of 16 bits is next to a tie."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    before = left_to_torch()
    theirs: Any = (torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d)(6)
    with torch.no_grad():
        theirs.weight.uniform_(0.5, 2)
        theirs.bias.normal_()
        theirs.running_mean.normal_()
        theirs.running_var.uniform_(0.5, 2)
    theirs = (theirs if mixed else theirs.to(dtype)).train(training)
    ours = copy.deepcopy(theirs)
    x = (torch.randn(shape) * 2 + 1).to(dtype)
    found = []
    for model, run in ((ours, torch.compile(ours, backend=backend)), (theirs, theirs)):
        z = x.clone().requires_grad_()
        y = run(z)
        torch.manual_seed(1)
        y.backward(torch.randn(y.shape).to(dtype))
        kept = [model.running_mean, model.running_var]
        found.append([y.detach(), z.grad, model.weight.grad, model.bias.grad, *kept])
    exact = mixed or not training
    assert not exact or torch.equal(found[0][0], found[1][0])
    for mine, other in zip(*found, strict=True):
        assert mine.dtype == other.dtype
        room = LAST_PLACE[dtype] * float(other.abs().max())
        torch.testing.assert_close(mine, other, rtol=0, atol=room)
    assert left_to_torch() == before


def test_statistics_of_16_bits_are_not_read_as_32() -> None:
    # PyTorch's graph says that it gives float32 of them, also where it does not train.
    x = torch.randn(3, 2, 4, dtype=torch.bfloat16)
    weight, bias, mean = (torch.randn(2).to(torch.bfloat16) for _ in range(3))
    var = torch.rand(2).to(torch.bfloat16) + 0.25

    def normalized(x: Any) -> Any:
        given = x, weight, bias, mean, var
        return torch.ops.aten._native_batch_norm_legit(*given, False, 0.5, 1e-5)[0]

    grads = []
    for run in (normalized, torch.compile(normalized, backend=backend, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        run(leaf).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_what_stays_with_pytorch_hands_over_the_types_that_the_graph_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from treadle.interop.torch.table import LOWERINGS

    monkeypatch.delitem(LOWERINGS, "_native_batch_norm_legit_functional.default")
    torch.compiler.reset()
    test_statistics_of_16_bits_are_not_read_as_32()
    assert any("batch_norm" in x.operator for x in left_to_torch())
