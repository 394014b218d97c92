"""Mixed precision on devices: a backend adds ops to the framework's lists."""

from __future__ import annotations

from typing import Any

import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.toy_backend import Toy

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.amp import GradScaler, autocast
from treadle.autodiff import GradManager
from treadle.base.errors import DeviceError
from treadle.optimizer import SGD

__all__ = ["plugins"]


class Matrices(Toy):
    """Softmax in few bits, tanh in many, exponentials in few against the default."""

    amp: Any = {"low": ("softmax", "exp"), "high": ("tanh",)}


def types(device: str) -> list[str]:
    x = mge.tensor([[0.5, 1.0]], device=device)
    half = x.astype("float16")
    with autocast(low_prec_dtype="float16"), mge.fallback("silent"):
        made = [F.softmax(x, 1), F.exp(x), F.tanh(half), F.matmul(x, x.T), F.log(half), half + half]
    return [y.dtype.name for y in made]


def test_lists_of_a_backend_come_first_on_its_devices_only(plugins: Plugins) -> None:
    plugins.offer("matrices", Matrices("matrices"))
    plugins.toy("toy")
    few, many = "float16", "float32"
    assert types("matrices0") == [few, few, many, few, many, few]
    assert types("toy0") == types("cpu0") == [many, many, few, few, many, few]


def test_compiled_functions_follow_them(plugins: Plugins) -> None:
    plugins.offer("matrices", Matrices("matrices"))

    @mge.jit.compile
    def function(x: mge.Tensor) -> mge.Tensor:
        with autocast(low_prec_dtype="bfloat16"):
            return F.exp(x)

    with mge.fallback("silent"):
        for device, dtype in (("matrices0", "bfloat16"), ("cpu0", "float32")):
            assert function(mge.tensor([1.0], device=device)).dtype.name == dtype


def test_a_network_trains_there_in_mixed_precision(plugins: Plugins) -> None:
    plugins.offer("matrices", Matrices("matrices"))
    mge.random.seed(0)
    net = M.Sequential(M.Linear(3, 8), M.ReLU(), M.Linear(8, 1)).to("matrices0")
    gm, opt, scaler = (
        GradManager().attach(net.parameters()),
        SGD(net.parameters(), 0.05),
        GradScaler(),
    )
    x = mge.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.5]], device="matrices0")
    losses = []
    for _ in range(6):
        with mge.fallback("silent"):
            with gm, autocast():
                loss = F.mean(F.square(net(x) - 1.0))
                scaler.backward(gm, loss)
            opt.step().clear_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert {p.dtype.name for p in net.parameters()} == {"float32"}


@pytest.mark.parametrize("lists", [{"few": ["exp"]}, {"low": ["expo"]}, {"low": "exp", "high": []}])
def test_wrong_lists_are_refused(plugins: Plugins, lists: Any) -> None:
    backend = Matrices("matrices")
    backend.amp = lists
    plugins.offer("matrices", backend)
    x = mge.tensor([1.0], device="matrices0")
    with autocast(), pytest.raises(DeviceError, match="backend matrices: its lists"):
        F.exp(x)
