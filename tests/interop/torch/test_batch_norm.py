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
