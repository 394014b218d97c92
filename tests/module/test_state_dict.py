"""State dicts: keys, shapes, and what loading accepts and refuses."""

import logging
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import treadle.module as M
from treadle.base.errors import ShapeError
from treadle.tensor import Parameter, Tensor


def _net() -> M.Sequential:
    return M.Sequential(
        OrderedDict(conv=M.Conv2d(2, 4, 3, groups=2), bn=M.BatchNorm2d(4), ln=M.LayerNorm((2, 3)))
    )


def test_keys_are_sorted_and_norms_are_flat() -> None:
    shapes = {key: value.shape for key, value in _net().state_dict().items()}
    assert list(shapes.items()) == [
        ("bn.bias", (4,)),
        ("bn.running_mean", (4,)),
        ("bn.running_var", (4,)),
        ("bn.weight", (4,)),
        ("conv.bias", (1, 4, 1, 1)),
        ("conv.weight", (2, 2, 1, 3, 3)),
        ("ln.bias", (6,)),
        ("ln.weight", (6,)),
    ]


def test_a_modules_own_tensors_come_before_those_of_its_modules() -> None:
    net = M.Linear(2, 3)
    net.an_earlier_name = M.Linear(3, 3, bias=False)
    assert list(net.state_dict()) == ["bias", "weight", "an_earlier_name.weight"]
    asked: list[str] = []
    net.load_state_dict(lambda key, tensor: asked.append(key), strict=False)
    assert asked == list(net.state_dict())


def test_values_are_arrays_or_with_keep_var_tensors() -> None:
    layer = M.Linear(2, 3)
    saved = layer.state_dict()
    assert isinstance(saved, OrderedDict)
    assert all(type(v) is np.ndarray for v in saved.values())
    assert layer.state_dict(keep_var=True)["weight"] is layer.weight


def test_prefix_and_given_dict() -> None:
    into: OrderedDict[str, Any] = OrderedDict(first=1)
    result = M.Linear(2, 3, bias=False).state_dict(into, prefix="net.")
    assert result is into
    assert list(result) == ["first", "net.weight"]


def test_saved_arrays_do_not_change_with_the_module() -> None:
    layer = M.Linear(2, 3)
    saved = layer.state_dict()
    before = saved["weight"].copy()
    layer.weight += 1.0
    np.testing.assert_equal(saved["weight"], before)


def test_a_parameter_shared_by_modules_stands_under_each() -> None:
    net = M.Sequential(M.Linear(2, 2, bias=False), M.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    saved = net.state_dict()
    assert list(saved) == ["0.weight", "1.weight"]
    net.load_state_dict(saved)
    assert net[1].weight is net[0].weight


def test_round_trip_keeps_handles_and_classes() -> None:
    one, two = _net(), _net()
    handle = two.conv.weight
    two.load_state_dict(one.state_dict())
    assert two.conv.weight is handle
    assert type(handle) is Parameter
    assert two.bn.weight.shape == (1, 4, 1, 1)
    for key, value in one.state_dict().items():
        np.testing.assert_equal(two.state_dict()[key], value)


def test_norms_take_their_own_shape_too() -> None:
    norm = M.BatchNorm2d(2)
    state = norm.state_dict()
    norm.load_state_dict({key: value.reshape(1, 2, 1, 1) + 1 for key, value in state.items()})
    np.testing.assert_equal(norm.weight.numpy(), np.full((1, 2, 1, 1), 2, np.float32))


def test_loaded_dtype_replaces_the_old_one() -> None:
    for dtype in (np.float16, np.float64):
        layer = M.Linear(2, 3)
        layer.load_state_dict({k: v.astype(dtype) for k, v in layer.state_dict().items()})
        assert layer.weight.dtype == dtype


def test_tensors_load_too() -> None:
    one, two = M.Linear(2, 3), M.Linear(2, 3)
    two.load_state_dict(one.state_dict(keep_var=True))
    np.testing.assert_equal(two.weight.numpy(), one.weight.numpy())
    one.weight += 1.0
    assert not np.array_equal(two.weight.numpy(), one.weight.numpy())


def test_missing_and_unused_names_are_refused() -> None:
    layer = M.Linear(2, 3)
    before = layer.weight.numpy().copy()
    renamed = {"weight": np.zeros((3, 2), np.float32), "bios": np.zeros(3, np.float32)}
    with pytest.raises(KeyError, match=r"missing=\['bias'\], unused=\['bios'\]"):
        layer.load_state_dict(renamed)
    np.testing.assert_equal(layer.weight.numpy(), before)


def test_not_strict_loads_what_fits_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    layer = M.Linear(2, 3)
    logger = logging.getLogger("treadle")
    logger.addHandler(caplog.handler)
    try:
        layer.load_state_dict({"weight": np.ones((3, 2), np.float32), "x": 1}, strict=False)
    finally:
        logger.removeHandler(caplog.handler)
    assert "missing=['bias'], unused=['x']" in caplog.text
    assert layer.weight.numpy().sum() == 6


def test_wrong_shape_names_the_parameter_and_changes_nothing() -> None:
    layer = M.Linear(2, 3)
    before = layer.bias.numpy().copy()
    state = {"bias": np.ones(3, np.float32), "weight": np.ones((2, 3), np.float32)}
    with pytest.raises(ShapeError, match=r"`weight` shape mismatch, should be \(3, 2\)"):
        layer.load_state_dict(state)
    np.testing.assert_equal(layer.bias.numpy(), before)


def test_values_must_be_arrays() -> None:
    layer = M.Linear(2, 1, bias=False)
    with pytest.raises(AssertionError, match="weight should be a NumPy array"):
        layer.load_state_dict({"weight": [[1.0, 2.0]]})
    with pytest.raises(ValueError, match="dict or callable"):
        layer.load_state_dict([("weight", 1)])


def test_a_function_supplies_values() -> None:
    layer = M.Linear(2, 3)

    def supply(key: str, tensor: Tensor) -> Any:
        return np.full(tensor.shape, 5, np.float32) if key == "weight" else None

    with pytest.raises(KeyError, match="missing"):
        layer.load_state_dict(supply)
    layer.load_state_dict(supply, strict=False)
    assert layer.weight.numpy().sum() == 30
