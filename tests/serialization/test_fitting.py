"""States of other frameworks made to fit: shapes, element types, names, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle as mge
from treadle.base.errors import CheckpointError
from treadle.serialization.fitting import (
    fit_state,
    is_same_order,
    renamed,
    shared_names,
    states_in,
    without_prefix,
)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((8,), (1, 8, 1, 1)),
        ((1, 8, 1, 1), (8,)),
        ((8, 2, 3, 3), (2, 4, 2, 3, 3)),
        ((2, 4, 2, 3, 3), (8, 2, 3, 3)),
        ((8, 1, 3, 3), (8, 1, 1, 3, 3)),
        ((4, 3), (4, 3, 1, 1)),
        ((), (1,)),
    ],
)
def test_shapes_between_which_there_is_one_way(given: Any, wanted: Any) -> None:
    assert is_same_order(given, wanted) and is_same_order(wanted, given)
    values = array(*given)
    fit = fit_state({"w": values}, {"w": array(*wanted)})
    assert fit.is_whole and fit.reshaped == {"w": (given, wanted)}
    assert fit.values["w"].shape == wanted
    assert fit.values["w"].reshape(-1).tolist() == values.reshape(-1).tolist()


@pytest.mark.parametrize(
    ("given", "wanted"), [((2, 3), (3, 2)), ((6,), (2, 3)), ((4, 6), (2, 2, 3)), ((3,), (4,))]
)
def test_other_shapes_are_refused(given: Any, wanted: Any) -> None:
    fit = fit_state({"w": array(*given)}, {"w": array(*wanted)})
    assert fit.mismatched == {"w": (given, wanted)} and not fit.is_whole and not fit.values


def test_grouped_weights_compute_what_they_did() -> None:
    """A grouped convolution with PyTorch's weights, beside one per group."""
    flat, x = array(4, 2, 3, 3) / 10, array(1, 4, 5, 5) / 10
    net = mge.module.Conv2d(4, 4, 3, groups=2, bias=False)
    net.load_state_dict(fit_state({"weight": flat}, net.state_dict()).values)
    halves = [
        mge.functional.conv2d(mge.Tensor(x[:, 2 * g : 2 * g + 2]), mge.Tensor(flat[2 * g :][:2]))
        for g in range(2)
    ]
    wanted = np.concatenate([h.numpy() for h in halves], 1)
    np.testing.assert_allclose(net(mge.Tensor(x)).numpy(), wanted, rtol=1e-5)


def test_floats_take_the_element_types_of_the_module_and_integers_keep_theirs() -> None:
    wanted = {"a": array(2), "b": array(2), "c": array(2, dtype=np.int32)}
    given = {
        "a": mge.Tensor([1.0, 2.0], dtype="bfloat16"),
        "b": array(2, dtype=np.float64),
        "c": array(2, dtype=np.int64),
    }
    fit = fit_state(given, wanted)
    assert fit.cast == {"bfloat16 to float32": 1, "float64 to float32": 1}
    assert fit.values["a"].dtype == np.float32 and fit.values["a"].tolist() == [1, 2]
    assert fit.values["c"].dtype == np.int64


def test_what_is_missing_left_over_and_of_no_use() -> None:
    given = {"a": array(2), "bn.num_batches_tracked": array(dtype=np.int64), "old": array(1)}
    fit = fit_state(given, {"a": array(2), "b": array(3)})
    assert fit.missing == ("b",) and fit.unexpected == ("old",) and not fit.is_whole
    assert fit.dropped == ("bn.num_batches_tracked",)


def test_tied_weights_need_one_of_their_names() -> None:
    net = mge.module.Sequential(mge.module.Linear(2, 2), mge.module.Linear(2, 2))
    net[1].weight = net[0].weight
    shared = shared_names(net.state_dict(keep_var=True))
    assert shared == [["0.weight", "1.weight"]]
    given = {"1.weight": array(2, 2) + 1, "0.bias": array(2), "1.bias": array(2)}
    fit = fit_state(given, net.state_dict(), shared)
    assert fit.is_whole and fit.tied == {"0.weight": "1.weight"}
    net.load_state_dict({**net.state_dict(), **fit.values})
    assert net[0].weight is net[1].weight and net[0].weight.tolist() == [[1, 2], [3, 4]]
    del given["1.weight"]
    assert fit_state(given, net.state_dict(), shared).missing == ("0.weight", "1.weight")


def test_prefixes_of_wrappers_come_off_only_where_all_names_have_them() -> None:
    wrapped = {"module._orig_mod.a": 1, "module._orig_mod.b": 2}
    assert without_prefix(wrapped, {"a": 0}) == ({"a": 1, "b": 2}, "module._orig_mod.")
    for state, wanted in (({"module.a": 1, "b": 2}, {}), ({"module.a": 1}, {"module.a": 0})):
        assert without_prefix(state, wanted) == (state, "")
    assert without_prefix({}, {}) == ({}, "")


def test_renaming() -> None:
    state = {"backbone.0.w": 1, "backbone.1.w": 2, "head.x": 3}
    rules = [(r"^backbone\.(\d+)", r"layers.\1"), {"head.x": "fc", "layers.1.w": None}]
    assert renamed(state, rules) == {"layers.0.w": 1, "fc": 3}
    with pytest.raises(CheckpointError, match="two tensors would be called 'w'"):
        renamed(state, [("^.*$", "w")])
    for rule in (("(", "x"), ("a", r"\3")):
        with pytest.raises(CheckpointError, match="rename"):
            renamed(state, [rule])


def test_states_in_training_checkpoints() -> None:
    weights, mean = {"w": array(2)}, {"w": array(2)}
    checkpoint = {"epoch": 3, "nested": {"net": weights, "best": 0.5}, "average": mean, "log": []}
    assert states_in(checkpoint) == {"nested.net": weights, "average": mean}
    assert states_in(weights) == {"": weights}
    assert states_in({"epoch": 3}) == {} and states_in([weights]) == {} and states_in({}) == {}
