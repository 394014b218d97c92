"""Lite on the OpenCL device: a network's graph is compiled for it, its ends may stay there."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.lite import LiteConfig, LiteDeviceType, LiteIO, LiteNetwork, LiteNetworkIO


def test_a_network_runs_on_the_device(tmp_path: Path) -> None:
    linear = M.Linear(6, 3)
    images = np.random.default_rng(0).random((2, 6), np.float32)

    @mge.jit.trace(symbolic=True, capture_as_const=True)
    def classify(data: mge.Tensor) -> mge.Tensor:
        return F.softmax(linear(data), axis=1)

    want = classify(mge.tensor(images)).numpy()
    classify.dump(tmp_path / "model.mge", arg_names=["data"], output_names=["prob"])
    ends = LiteNetworkIO(outputs=[LiteIO("prob", is_host=False)])
    network = LiteNetwork(LiteConfig(LiteDeviceType.LITE_OPENCL), ends)
    network.load(tmp_path / "model.mge")
    network.enable_profile_performance(str(tmp_path / "profile.json"))
    network.get_io_tensor("data").set_data_by_copy(images)
    network.forward()
    prob = network.get_io_tensor("prob")
    assert prob.device_type is LiteDeviceType.LITE_OPENCL
    np.testing.assert_allclose(prob.to_numpy(), want, 1e-5)
    assert "matmul" in (tmp_path / "profile.json").read_text()
