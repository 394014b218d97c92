"""MegEngine's tags for orders of axes: who inherits them, and that no number changes."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.amp import autocast, convert_module_format
from treadle.autodiff import GradManager
from treadle.optimizer import SGD, Adam
from treadle.tensor import Tensor

IMAGE = np.random.default_rng(3).normal(size=(2, 4, 6, 6)).astype("float32")


def _of(shape: tuple[int, ...], value: float = 0.5) -> Tensor:
    return mge.tensor(np.full(shape, value, "float32"))


INHERITED: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: 2 * x + _of((2, 4, 6, 6)) - x / 3,
    "functions of one element": lambda x: F.relu(F.exp(-x)),
    "another element type": lambda x: x.astype("float16"),
    "broadcast": lambda x: F.broadcast_to(x[:, :1], (2, 3, 6, 6)),
    "reshape to four axes": lambda x: x.reshape(4, 2, 6, 6),
    "concat": lambda x: F.concat([_of((2, 1, 6, 6)), x], axis=1),
    "slices": lambda x: x[:, 1:3, ::2],
    "conv": lambda x: F.conv2d(x, _of((3, 4, 3, 3)), _of((1, 3, 1, 1))),
    "groups": lambda x: F.conv2d(x, _of((2, 3, 2, 1, 1)), groups=2),
    "transposed conv": lambda x: F.conv_transpose2d(x, _of((4, 3, 2, 2))),
    "batch norm": lambda x: F.batch_norm(x, training=True),
    "statistics that are kept": lambda x: F.batch_norm(
        x, _of((1, 4, 1, 1)), _of((1, 4, 1, 1), 1.0)
    ),
    "max pool": lambda x: F.max_pool2d(x, 2),
    "avg pool": lambda x: F.avg_pool2d(x, 2),
    "adaptive max pool": lambda x: F.adaptive_max_pool2d(x, 2),
    "adaptive avg pool": lambda x: F.adaptive_avg_pool2d(x, 2),
    "resize": lambda x: F.vision.interpolate(x, scale_factor=2),
    "nearest": lambda x: F.vision.interpolate(x, scale_factor=2, mode="nearest"),
    "detach": lambda x: x.detach(),
}
LOST: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda x: x.transpose(0, 2, 3, 1),
    "other ranks": lambda x: x.reshape(2, 144),
    "flatten": lambda x: F.flatten(x, 1),
    "more axes": lambda x: F.broadcast_to(x, (2, 2, 4, 6, 6)),
    "pad": lambda x: F.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))),
    "sum": lambda x: x.sum(axis=1),
    "two tags": lambda x: x + mge.tensor(IMAGE, format="nchw"),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", [*INHERITED, *LOST])
def test_tags_of_results(case: str, compiled: bool) -> None:
    function = {**INHERITED, **LOST}[case]
    run = mge.jit.compile(function) if compiled else function
    plain, tagged = run(mge.tensor(IMAGE)), run(mge.tensor(IMAGE, format="nhwc"))
    assert plain.format in ("default", "nchw") and tagged.shape == plain.shape
    assert tagged.format == ("nhwc" if case in INHERITED else "default")
    np.testing.assert_array_equal(tagged.numpy(), plain.numpy())


def test_handles_keep_and_change_their_tag() -> None:
    x = mge.tensor(IMAGE, format="nhwc")
    assert Tensor(x).format == pickle.loads(pickle.dumps(x)).format == "nhwc"
    x[:, 0] = 1
    x += 1
    assert x.format == "nhwc"
    x[...] = mge.tensor(IMAGE, format="nchw")
    assert x.format == "nchw"
    x.format = "default"
    assert (x * 2).format == "default"


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_training_keeps_the_tags_of_a_module(optimizer: type, tmp_path: Path) -> None:
    net = M.Sequential(M.Conv2d(4, 8, 3, groups=2), M.BatchNorm2d(8), M.ReLU())
    twin = convert_module_format(net, inplace=False)
    seen = []
    for model, format in ((net, "default"), (twin, "nhwc")):
        manager, step = GradManager().attach(model.parameters()), optimizer(model.parameters(), 0.1)
        for _ in range(2):
            with manager, autocast():
                out = model(mge.tensor(IMAGE, format=format))
                manager.backward((out * out).mean())
            step.step().clear_grad()
        assert {out.format, *(t.format for t in model.tensors())} == {format}
        seen.append([t.numpy() for t in model.tensors()])
    for mine, theirs in zip(*seen, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    mge.save(twin.state_dict(), tmp_path / "state")
    loaded = mge.load(tmp_path / "state")
    again = M.Sequential(M.Conv2d(4, 8, 3, groups=2), M.BatchNorm2d(8), M.ReLU())
    again.load_state_dict(loaded)
    np.testing.assert_array_equal(again[0].weight.numpy(), twin[0].weight.numpy())
