"""What a program brings to a device: models from code and files, gradients' own kernels, names."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.plugins import Plugins, plugins
from tests.backends.test_tier0 import cnn, train
from tests.backends.toy_backend import elementwise, kernel
from tests.serialization.conftest import torch
from tests.serialization.torch_pickles import whole, written

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.base.errors import DeviceError
from treadle.ops.conv import ConvGradInput, ConvGradWeight
from treadle.serialization import load_program, save_program
from treadle.traced_module import trace_module

__all__ = ["plugins", "torch"]
IMAGES = np.random.default_rng(5).standard_normal((4, 1, 8, 8)).astype(np.float32)


def on(device: str) -> mge.Tensor:
    return mge.tensor(IMAGES, device=device)


def test_a_model_from_code_and_from_files_runs_where_it_is_moved(
    plugins: Plugins, tmp_path: Path
) -> None:
    plugins.toy(kernels=elementwise())
    net = cnn()
    net.eval()
    expected = net(on("cpu0")).numpy()
    mge.save(net.state_dict(), tmp_path / "state.mge")
    again = cnn()
    again.load_state_dict(mge.load(tmp_path / "state.mge"))
    again.eval()
    mge.save(trace_module(net, on("cpu0")), tmp_path / "net.tm")
    program = io.BytesIO()
    save_program(mge.jit.compile(net), program, on("cpu0"))
    with mge.fallback("silent"):
        found = {
            "code": net.to("toy0")(on("toy0")),
            "state": again.to("toy1")(on("toy1")),
            "compiled": mge.jit.compile(net)(on("toy0")),
            "traced": mge.load(tmp_path / "net.tm").to("toy1")(on("toy1")),
        }
        mge.set_default_device("toy0")  # where programs from files run
        found["program"] = load_program(io.BytesIO(program.getvalue()))(IMAGES)
    for name, y in found.items():
        assert str(y.device).startswith("toy"), name
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_weights_of_a_pytorch_file_run_on_a_device(
    plugins: Plugins, torch: Any, tmp_path: Path
) -> None:
    plugins.toy(kernels=elementwise())
    rng = np.random.default_rng(1)
    arrays = OrderedDict(
        [("0.weight", rng.random((3, 4), np.float32)), ("0.bias", rng.random(3, np.float32))]
    )
    state = OrderedDict((name, whole(array)) for name, array in arrays.items())
    (tmp_path / "net.pt").write_bytes(written(state))
    net = M.Sequential(M.Linear(4, 3), M.ReLU())
    net.load_state_dict(mge.load(tmp_path / "net.pt"))
    x = rng.random((2, 4), np.float32)
    with mge.fallback("silent"):
        y = net.to("toy0")(mge.tensor(x, device="toy0"))
    expected = np.maximum(x @ arrays["0.weight"].T + arrays["0.bias"], 0)
    assert y.device == "toy0"
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


# -- gradients -------------------------------------------------------------------------------


def test_a_backend_replaces_the_kernel_of_a_gradient(plugins: Plugins) -> None:
    seen: list[str] = []

    def gradient(op: Any) -> Any:
        def compute(x: Any, y: Any, **attributes: Any) -> Any:
            seen.append(op.name)
            return op(**attributes).reference(x, y)

        return kernel(op.name, compute, dense=False)

    plugins.toy("plain", kernels=elementwise())
    plugins.toy("toy", kernels=[*elementwise(), gradient(ConvGradInput), gradient(ConvGradWeight)])
    with mge.fallback("silent"):
        losses, _ = train("plain0", cnn)
        assert "conv_grad_weight" in {row.op for row in mge.fallback_report(clear=True)}
        assert train("toy0", cnn)[0] == pytest.approx(losses, rel=1e-5)
    assert seen == ["conv_grad_weight"] * 3  # nobody needs the gradient of the images
    assert "conv_grad_weight" not in {row.op for row in mge.fallback_report()}
    x = on("toy0")
    gm = GradManager().attach(x)
    with mge.fallback("silent"), gm:
        w = mge.tensor(np.ones((2, 1, 3, 3), np.float32), device="toy0")
        gm.backward(F.conv2d(x, w).sum())
    assert seen[3:] == ["conv_grad_input"]
    assert x.grad.numpy()[0, 0, 4, 4] == 18.0


# -- names of devices that nobody here has ---------------------------------------------------


def test_amd_gpus_have_names_and_no_backend() -> None:
    assert mge.is_rocm_available() is False
    assert mge.get_device_count("rocm") == 0
    with pytest.raises(DeviceError, match="there is no device rocm0: 0 of this kind exist"):
        mge.tensor([1.0], device="rocm0")


def test_a_backend_for_them_is_one_like_any_other(plugins: Plugins) -> None:
    plugins.toy("rocm", kernels=elementwise())
    assert mge.is_rocm_available() and mge.get_device_count("rocm") == 2
    x = mge.tensor([1.0, 2.0], device="rocm1")
    with mge.fallback("error"):
        assert (x + x).tolist() == [2.0, 4.0]
    assert (x + x).device == "rocm1"
    assert mge.rocm.device_count() == 2
