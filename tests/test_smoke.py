"""The shortest proof that an installation works: train, save, load, same answer."""

from pathlib import Path

import numpy as np

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.optimizer import SGD


def test_version_is_stated() -> None:
    assert mge.__version__.split(".")[0].isdigit()


def test_model_learns_and_survives_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], dtype="float32")

    net = M.Linear(4, 1)
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(50):
        with manager:
            loss = F.loss.square_loss(net(mge.Tensor(x)), mge.Tensor(y))
            manager.backward(loss)
        optimizer.step().clear_grad()
        losses.append(loss.item())
    assert losses[-1] < 1e-3 * losses[0]

    path = str(tmp_path / "net.mge")
    mge.save(net.state_dict(), path)
    restored = M.Linear(4, 1)
    restored.load_state_dict(mge.load(path))
    np.testing.assert_array_equal(restored(mge.Tensor(x)).numpy(), net(mge.Tensor(x)).numpy())
