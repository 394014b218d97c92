from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

from treadle.base.errors import DTypeError, ShapeError
from treadle.data import Collator

Pair = namedtuple("Pair", ["image", "label"])


def collate(*samples: Any) -> Any:
    return Collator().apply(samples)


def check(array: Any, dtype: Any, values: Any) -> None:
    assert isinstance(array, np.ndarray)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, values)


def test_arrays_are_stacked_contiguously() -> None:
    batch = collate(np.ones((3, 2), np.uint8).T, np.zeros((3, 2), np.uint8).T)
    check(batch, np.uint8, [[[1] * 3] * 2, [[0] * 3] * 2])
    assert batch.flags.c_contiguous


@pytest.mark.parametrize(
    ("samples", "dtype"),
    [
        ((1.5, 2.5), np.float64),
        ((1, 2), np.int64),
        ((True, False), np.bool_),
        ((1, 2.5), np.float64),
        ((True, 3), np.int64),
        ((np.float32(1), np.float32(2)), np.float32),
        ((np.int8(1), np.int8(2)), np.int8),
        ((np.array(1, np.int16), np.array(2, np.int16)), np.int16),
    ],
)
def test_numbers(samples: tuple[Any, ...], dtype: Any) -> None:
    check(collate(*samples), dtype, list(samples))


def test_texts_stay_tuples() -> None:
    assert collate("a", "b") == ("a", "b")
    assert collate(b"a", b"b") == (b"a", b"b")
    assert collate((np.str_("a"), 1), (np.str_("b"), 2))[0] == ("a", "b")


def test_containers_recurse() -> None:
    batch = collate(
        (np.zeros(2), {"id": 1, "box": [1.0, 2.0]}), (np.ones(2), {"id": 2, "box": [3.0, 4.0]})
    )
    assert isinstance(batch, list)
    check(batch[0], np.float64, [[0, 0], [1, 1]])
    check(batch[1]["id"], np.int64, [1, 2])
    check(batch[1]["box"][1], np.float64, [2, 4])
    assert type(collate(OrderedDict(a=1))) is dict


def test_named_tuples_stay_named() -> None:
    batch = collate(Pair(np.zeros(1), 3), Pair(np.ones(1), 4))
    assert isinstance(batch, Pair)
    check(batch.label, np.int64, [3, 4])


@pytest.mark.parametrize(
    ("samples", "saw"),
    [
        ((np.zeros((3, 4)), np.zeros((3, 4)), np.zeros((3, 5))), "sample 2 float64[3,5]"),
        (((1, 2), (1, 2, 3)), "sample 1 tuple of 3"),
        (((1, 2), 3), "sample 1 int"),
        (({"a": 1}, {"b": 1}), "sample 1 keys ['b']"),
        (({"a": 1}, {"a": 1, "b": 1}), "sample 1 keys ['a', 'b']"),
    ],
)
def test_samples_that_do_not_fit_are_named(samples: tuple[Any, ...], saw: str) -> None:
    with pytest.raises(ShapeError) as caught:
        collate(*samples)
    assert saw in str(caught.value)
    assert caught.value.hint


def test_the_field_of_a_misfit_is_named() -> None:
    with pytest.raises(ShapeError) as caught:
        collate((1, {"mask": np.zeros(2)}), (1, {"mask": np.zeros(3)}))
    assert caught.value.__notes__[-2:] == [
        "in field 'mask' of the samples",
        "in field 1 of the samples",
    ]


@pytest.mark.parametrize("sample", [None, object(), {1, 2}, 1j, np.array([None])])
def test_other_types_are_refused(sample: Any) -> None:
    with pytest.raises(TypeError) as caught:
        collate(sample, sample)
    assert isinstance(caught.value, DTypeError)


def test_a_number_among_other_things_is_refused() -> None:
    with pytest.raises(TypeError, match=r"sample 1 of type builtins\.NoneType"):
        collate(1, None)
    with pytest.raises(TypeError, match=r"sample 1 of type builtins\.str"):
        collate(np.zeros(2), "text")


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        collate()


def test_a_subclass_treats_its_own_types_at_any_depth() -> None:
    class Complex(Collator):
        def apply(self, inputs: Any) -> Any:
            return np.array(inputs) if isinstance(inputs[0], complex) else super().apply(inputs)

    check(Complex().apply([(1, 1j), (2, 2j)])[1], np.complex128, [1j, 2j])
