"""Tensors: construction, element types, promotion, text, export, and Python's protocols."""

import copy
import inspect
import math
import operator
import pickle
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
from treadle.base.errors import DTypeError, ShapeError, TraceError
from treadle.tensor import Parameter, Tensor

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip


@pytest.fixture(autouse=True)
def on_the_default_device() -> None:
    mge.set_default_device("xpux")


# -- construction ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (1, "int32", ()),
        (1.0, "float32", ()),
        (True, "bool", ()),
        (None, "float32", (0,)),
        ([], "float32", (0,)),
        ([1, 2], "int32", (2,)),
        ([1.0, 2], "float32", (2,)),
        ([[True], [False]], "bool", (2, 1)),
        ((1, 2), "int32", (2,)),
        (range(3), "int32", (3,)),
        (np.float64(2), "float32", ()),
        (np.int64(2), "int32", ()),
        (np.arange(3), "int32", (3,)),
        (np.zeros((2, 0)), "float32", (2, 0)),
        (np.zeros(2, "float16"), "float16", (2,)),
        (np.zeros(2, BF16), "bfloat16", (2,)),
        (np.zeros(2, "uint16"), "uint16", (2,)),
        (np.zeros(2, "complex128"), "complex64", (2,)),
    ],
)
def test_construction_chooses_the_narrow_types(
    data: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    tensor = mge.tensor(data)
    assert tensor.dtype.name == dtype
    assert (tensor.shape, tensor.ndim) == (shape, len(shape))
    assert tensor.size == math.prod(shape)


def test_tensor_is_the_class_and_takes_dtype_device_and_name() -> None:
    assert mge.tensor is Tensor and mge.Tensor is Tensor
    made = mge.tensor([1, 2], dtype="float16", device="cpu1", name="w")
    assert (made.dtype, made.device, made.name) == (np.float16, "cpu1", "w")
    assert mge.tensor(1, format="nhwc").format == "nhwc"
    assert (mge.tensor(1).name, mge.tensor(1).format, mge.tensor(1).grad) == ("", "default", None)


def test_the_source_is_copied() -> None:
    array = np.ones(3, np.float32)
    tensor = mge.tensor(array)
    array[0] = 7
    assert tensor.tolist() == [1, 1, 1]
    again = mge.tensor(tensor)
    tensor += 1
    assert again.tolist() == [1, 1, 1] and again.name == ""
    assert mge.tensor(tensor, dtype="int32", device="cpu1").tolist() == [2, 2, 2]
    backwards = np.arange(6, dtype=np.float32).reshape(2, 3)[::-1, ::2]
    assert mge.tensor(backwards).tolist() == backwards.tolist()


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (2**40, None, "1099511627776 does not fit int32"),
        (np.array([1, -(2**40)]), None, "-1099511627776 does not fit int32"),
        (1e300, None, r"1e\+300 does not fit float32"),
        (-1, "uint8", "-1 does not fit uint8"),
        ([1, 300], "uint8", "300 does not fit uint8"),
        (300.5, "uint8", "300.0 does not fit uint8"),
        (math.nan, "int32", "nan does not fit int32"),
        (math.inf, "int64", "inf does not fit int64"),
        (1e5, "float16", "100000.0 does not fit float16"),
        (2**70, None, "does not fit 64 bits"),
        ([1 + 2j], "int32", r"\(1\+2j\) does not fit int32"),
        ([1 + 2j], "float32", r"\(1\+2j\) does not fit float32"),
    ],
)
def test_values_that_do_not_fit_are_refused(data: Any, dtype: str | None, message: str) -> None:
    with pytest.raises(DTypeError, match=f"^tensor: .*{message}"):
        mge.tensor(data, dtype=dtype)


def test_values_that_fit_are_kept_and_rounded() -> None:
    assert mge.tensor(2**40, dtype="int64").item() == 2**40
    assert mge.tensor(1e300, dtype="float64").item() == 1e300
    assert mge.tensor(65519.0, dtype="float16").item() == 65504.0
    assert mge.tensor([1.9, -1.9], dtype="int32").tolist() == [1, -1]
    assert mge.tensor([math.inf, math.nan]).dtype == np.float32
    assert mge.tensor(2**63 - 1, dtype="int64").item() == 2**63 - 1
    assert mge.tensor([0.0, 2.5], dtype="bool").tolist() == [False, True]


@pytest.mark.parametrize("data", ["text", ["a"], object(), {1: 2}, [None], np.array(["x"])])
def test_what_is_no_array_of_numbers_is_refused(data: Any) -> None:
    with pytest.raises(DTypeError, match="cannot make numbers"):
        mge.tensor(data)


def test_ragged_lists_and_unknown_types_are_refused() -> None:
    with pytest.raises(ShapeError, match="differ in length"):
        mge.tensor([[1], [1, 2]])
    with pytest.raises(TypeError, match="'foo' is not an element type"):
        mge.tensor(1, dtype="foo")


# -- element types -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_is_made_by_name_numpy_type_and_astype(dtype: str) -> None:
    tensor = mge.tensor([0, 1], dtype=dtype)
    assert tensor.dtype.name == dtype
    assert mge.tensor([0, 1], dtype=tensor.dtype).dtype == tensor.dtype
    assert mge.tensor([0, 1]).astype(dtype).tolist() == tensor.tolist()
    assert tensor.astype(tensor.dtype.type).dtype == tensor.dtype
    assert tensor.numpy().dtype == tensor.dtype
    assert F.all(tensor == tensor).item()


def test_dtype_equals_numpy_types_and_names() -> None:
    a = mge.tensor([1.0])
    assert a.dtype == np.float32 and a.dtype == "float32" and a.dtype != np.float64
    assert isinstance(a.dtype, np.dtype)


def test_astype_copies() -> None:
    a = mge.tensor([1.5, -2.5])
    half, same = a.astype("float16"), a.astype(np.float32)
    assert half.dtype == np.float16 and a.dtype == np.float32
    same += 1
    assert a.tolist() == [1.5, -2.5]
    assert a.astype(int).dtype == np.int32 and a.astype(float).dtype == np.float32


def test_casts_follow_the_machine() -> None:
    assert mge.tensor([1.9, -1.9]).astype("int32").tolist() == [1, -1]
    assert mge.tensor(math.nan).astype("int32").item() == -(2**31)
    assert mge.tensor([0.0, 0.5, math.nan]).astype("bool").tolist() == [False, True, True]
    assert mge.tensor([255, 256]).astype("uint8").tolist() == [255, 0]
    assert (mge.tensor(2**31 - 1) + 1).item() == -(2**31), "int32 arithmetic wraps"


# -- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (lambda: mge.tensor(1.0), "Tensor(1.0, device=xpux:0)"),
        (lambda: mge.tensor(3.14159265), "Tensor(3.1415927, device=xpux:0)"),
        (lambda: mge.tensor([1, 2]), "Tensor([1 2], dtype=int32, device=xpux:0)"),
        (lambda: Parameter([1.0, 2.0]), "Parameter([1. 2.], device=xpux:0)"),
        (lambda: mge.tensor([1.0, 2.0, 3.0]), "Tensor([1. 2. 3.], device=xpux:0)"),
        (lambda: mge.tensor([True, False]), "Tensor([ True False], dtype=bool, device=xpux:0)"),
        (lambda: mge.tensor([]), "Tensor([], device=xpux:0)"),
        (
            lambda: mge.tensor(np.arange(12)).reshape(2, 6).astype("float32"),
            "Tensor([[ 0.  1.  2.  3.  4.  5.]\n [ 6.  7.  8.  9. 10. 11.]], device=xpux:0)",
        ),
        (
            lambda: mge.tensor([[0.29763, 0.40783], [0.5, 0.94134]]),
            "Tensor([[0.2976 0.4078]\n [0.5    0.9413]], device=xpux:0)",
        ),
        (lambda: mge.tensor([0.1], device="cpu1"), "Tensor([0.1], device=cpu1:0)"),
        (lambda: mge.tensor([0.5], dtype="bfloat16"), None),
    ],
)
def test_repr_and_str(tensor: Any, text: str | None) -> None:
    made = tensor()
    wanted = text or "Tensor([0.5], dtype=bfloat16, device=xpux:0)"
    assert repr(made) == str(made) == wanted
    assert f"{made}" == wanted


def test_numpy_text_has_no_wrapper() -> None:
    assert str(mge.tensor([[1.0, 2.0]]).numpy()) == "[[1. 2.]]"


def test_format_specs_apply_to_single_elements() -> None:
    assert f"{mge.tensor(1.23456):.2f}" == "1.23" and f"{mge.tensor([3]):03d}" == "003"
    with pytest.raises(ValueError, match="one element"):
        format(mge.tensor([1.0, 2.0]), ".2f")


# -- export ------------------------------------------------------------------------------------


def test_numpy_is_read_only_and_shares_memory() -> None:
    t = mge.tensor([1.0, 2.0])
    array = t.numpy()
    assert np.shares_memory(array, t.numpy()) and not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5
    t += 1
    assert array.tolist() == [1, 2], "the exported array never changes"
    turned = mge.tensor([[1.0, 2.0], [3.0, 4.0]]).T.numpy()
    assert turned.flags.c_contiguous and turned.tolist() == [[1, 3], [2, 4]]


def test_array_protocol() -> None:
    t = mge.tensor([1.0, 2.0])
    assert np.asarray(t).dtype == np.float32 and np.asarray(t, "int64").tolist() == [1, 2]
    mine = np.array(t)
    mine[0] = 9
    assert t.tolist() == [1, 2]
    assert np.stack([t, t]).shape == (2, 2)
    assert np.shares_memory(np.asarray(t), t.numpy())
    assert np.add.reduce(t) == 3 and np.add(t, 1, where=True).tolist() == [2, 3]
    assert np.sum(t) == 3 and np.concatenate([t, t]).tolist() == [1, 2, 1, 2]
    assert np.fabs(1.0 - t[1]) == 1 and isinstance(np.exp(t), mge.Tensor)
    assert (np.shape(t), np.ndim(t), np.size(t)) == ((2,), 1, 2)


def test_numpy_functions_while_compiling() -> None:
    f = mge.jit.compile(lambda x: x * np.ndim(x) + np.shape(x)[0])
    assert f(mge.tensor([[1.0], [2.0]])).tolist() == [[4.0], [6.0]]
    with pytest.raises(TraceError, match="known only when the program runs"):
        mge.jit.compile(lambda x: np.sum(x))(mge.tensor([1.0]))


def test_dlpack_with_numpy() -> None:
    t = mge.tensor([[1, 2], [3, 4]])
    array = np.from_dlpack(t)
    assert array.dtype == np.int32 and array.tolist() == [[1, 2], [3, 4]]
    assert mge.tensor(array).tolist() == t.tolist()
    assert t.__dlpack_device__() == (1, 0)
    array[0, 0] = 9
    assert t[0, 0].item() == 1
    shared = np.from_dlpack(t, copy=False)
    assert np.shares_memory(shared, t.numpy()) and not shared.flags.writeable
    with pytest.raises(BufferError, match="DLPack 1"):
        t.__dlpack__(copy=False)


@pytest.mark.oracle
def test_dlpack_with_torch() -> None:
    torch = pytest.importorskip("torch", reason="the comparison framework is not installed")
    t = mge.tensor([[1.0, 2.0]])
    there = torch.from_dlpack(t)
    there += 1
    assert there.tolist() == [[2, 3]] and t.tolist() == [[1, 2]]
    assert mge.tensor(torch.arange(3.0)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickling_keeps_value_type_class_and_device(dtype: str, protocol: int) -> None:
    p = Parameter([[0, 1]], dtype=dtype, device="cpu1", name="w")
    p.grad = mge.tensor([1.0])
    back = pickle.loads(pickle.dumps(p, protocol))
    assert type(back) is Parameter and back.dtype == p.dtype and back.tolist() == p.tolist()
    assert (back.device, back.name, back.grad) == ("cpu1", "w", None)


def test_copies_are_independent() -> None:
    p = Parameter([1.0])
    p.grad = mge.tensor([1.0])
    for again in (copy.deepcopy(p), copy.copy(p)):
        assert type(again) is Parameter and again.grad is None
        again += 1
    assert p.item() == 1
    one = [p, p]
    two = copy.deepcopy(one)
    assert two[0] is two[1] is not p


# -- Python's protocols ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_item_and_tolist_give_python_numbers(dtype: str) -> None:
    t = mge.tensor([[1]], dtype=dtype)
    kind = bool if dtype == "bool" else float if "float" in dtype else int
    assert type(t.item()) is kind and type(t.tolist()[0][0]) is kind
    assert (bool(t), int(t), float(t), complex(t)) == (True, 1, 1.0, 1 + 0j)


def test_item_of_several_elements() -> None:
    t = mge.tensor([1.0, 2.0])
    assert t.item(1) == 2.0
    for single in (t.item, lambda: bool(t), lambda: float(t), lambda: int(t)):
        with pytest.raises(ValueError, match="one element"):
            single()
    with pytest.raises(IndexError):
        t.item(5)


def test_len_iteration_membership_and_hash() -> None:
    t = mge.tensor([[1, 2], [3, 4]])
    assert len(t) == 2 and [row.tolist() for row in t] == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="ndim is 0"):
        len(mge.tensor(1))
    with pytest.raises(TypeError, match="iteration over a 0-d"):
        iter(mge.tensor(1))
    with pytest.raises(NotImplementedError):
        operator.contains(t, 1)
    table = {t: "kept"}
    assert table[t] == "kept" and hash(t) != hash(mge.tensor(t))
    assert [10, 20, 30][mge.tensor(1)] == 20 and list(range(mge.tensor([2]))) == [0, 1]
    with pytest.raises(TypeError, match="integer"):
        operator.index(mge.tensor(1.0))


def test_rank_zero_is_kept() -> None:
    for zero in (mge.tensor([1.0, 2.0]).sum(), mge.tensor([1.0])[0], mge.tensor(1.0) * 2):
        assert zero.shape == () and zero.ndim == 0
    assert mge.tensor(1.0)[None].shape == (1,)


def test_shape_methods() -> None:
    t = mge.tensor(np.arange(6))
    assert t.reshape(2, 3).shape == t.reshape((2, 3)).shape == t.reshape([2, -1]).shape == (2, 3)
    assert t.reshape(mge.tensor([3, 2])).shape == t.reshape(mge.tensor(3), 2).shape == (3, 2)
    for bad in ((-1, -1), (4, 2), (-2, -3), (0, -1)):
        with pytest.raises(ValueError, match="reshape"):
            t.reshape(*bad)
    cube = t.reshape(1, 2, 3)
    assert cube.T.shape == (3, 2, 1) and cube.transpose(1, 0, 2).shape == (2, 1, 3)
    assert cube.transpose(1, "x", 0, 2).shape == (2, 1, 1, 3)
    assert cube.flatten().shape == (6,) and cube.flatten(1).shape == (1, 6)
    assert cube.flatten(0, 1).shape == (2, 3) and mge.tensor(1).flatten().shape == (1,)
    assert cube.strides == (24, 12, 4) and cube.is_contiguous() and cube.contiguous() is cube


def test_reductions() -> None:
    t = mge.tensor([[1, 2], [3, 4]])
    assert (t.sum().item(), t.prod().item(), t.max().item(), t.min().item()) == (10, 24, 4, 1)
    assert t.sum(axis=0).tolist() == [4, 6] and t.sum(-1, keepdims=True).tolist() == [[3], [7]]
    assert t.sum(axis=(0, 1)).dtype == np.int32 and t.mean().dtype == np.float32
    assert t.sum(axis=()).tolist() == t.tolist() and t.sum(np.int64(0)).tolist() == [4, 6]
    assert t.sum(keepdims=True).tolist() == [[10]]
    assert mge.tensor([True, True]).sum().dtype == np.int32
    assert mge.tensor([1.0], dtype="float16").mean().dtype == np.float32
    assert mge.tensor([1.0], dtype="float64").mean().dtype == np.float64
    with pytest.raises(AssertionError, match="twice"):
        t.sum(axis=(0, -2))
    with pytest.raises(ValueError, match="axis 2 is out of range"):
        t.sum(axis=2)
    with pytest.raises(ValueError, match="no elements"):
        mge.tensor([]).max()


def test_the_literals_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[Tensor.__module__]  # `treadle.tensor` is the class
    monkeypatch.setattr(module, "_MOST_SCALARS", 8)
    t = mge.tensor([1.0])
    assert [(t * float(i)).item() for i in range(50)] == list(range(50))
    assert 0 < len(module._SCALARS) <= 8
    with pytest.raises(ShapeError, match="differ in length"):
        _ = t * [[1.0], [1.0, 2.0]]


# -- orders of axes ----------------------------------------------------------------------------


def test_formats_are_tags() -> None:
    x = mge.tensor(np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2))
    assert (x.format, x.strides, x.is_contiguous(), x.contiguous()) == (
        "default",
        x.strides,
        True,
        x,
    )
    for name in ("nchw", "nhwc", "nchw4", "nchw16", "default"):
        x.format = name
        assert x.format == name and x.strides == (64, 16, 8, 4)
        np.testing.assert_array_equal(x.numpy(), np.arange(16).reshape(1, 4, 2, 2))
    x.format = "nhwc"
    assert ((x + 1).format, pickle.loads(pickle.dumps(x)).format) == ("nhwc", "nhwc")
    for wrong in ("NHWC", "nchw0", "chwn", "", None):
        with pytest.raises(ShapeError, match="no order of axes named"):
            x.format = wrong  # type: ignore[assignment]
    with pytest.raises(ShapeError, match="'nhcw'"):
        mge.tensor([1.0], format="nhcw")


# -- names -------------------------------------------------------------------------------------


def test_every_public_attribute_is_documented() -> None:
    data = {"grad", "name", "dmap_callback"}
    for name in dir(Tensor):
        if name.startswith("_"):
            continue
        found = inspect.getattr_static(Tensor, name)
        if name in data:
            assert name in str(Tensor.__doc__)
        else:
            assert inspect.getdoc(found), f"Tensor.{name} has no docstring"


@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        ("cat", "F.concat"),
        ("permute", "F.transpose"),
        ("view", "x.reshape"),
        ("unsqueeze", "F.expand_dims"),
        ("exp", "F.exp(x)"),
        ("exp_", "F.exp(x)"),
        ("cuda", 'x.to("gpux")'),
        ("long", 'x.astype("int64")'),
        ("backward", "GradManager"),
        ("requires_grad", "GradManager"),
        ("clamp_", "F.clip"),
    ],
)
def test_a_guessed_method_is_answered_with_the_right_name(guess: str, advice: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(mge.tensor([1.0]), guess)
    assert f"has no attribute {guess!r}; did you mean" in str(caught.value)
    assert advice in str(caught.value)
    assert not hasattr(mge.tensor([1.0]), guess)


def test_an_unknown_attribute_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^'Tensor' object has no attribute 'zzz'$"):
        mge.tensor([1.0]).zzz
    with pytest.raises(AttributeError):
        mge.tensor([1.0]).requires_grad = True


def test_huge_results_are_refused_and_the_process_lives() -> None:
    wide = F.broadcast_to(mge.tensor(1.0), (2**40,))
    for refused in (
        lambda: wide + 1, lambda: wide + wide, wide.numpy, lambda: F.zeros((2**40,)),
        lambda: F.ones((2**20, 2**20)), lambda: F.arange(2**40), lambda: F.exp(wide),
    ):  # fmt: skip
        with pytest.raises(MemoryError):
            refused()
    assert (mge.tensor(1.0) + 1).item() == 2


def test_private_names_that_megengine_programs_use() -> None:
    x = mge.tensor([[1.0, 2.0]], name="x")
    assert x._tuple_shape == (1, 2) and not x._isscalar() and mge.tensor(1)._isscalar()
    assert x._broadcast(3, 2).shape == (3, 2) and x._dev_tensor() is x
    x._set_name("y")
    assert x.name == "y"
    tagged = x._as_format("nhwc")
    assert (tagged.format, x.format) == ("nhwc", "default") and tagged.tolist() == x.tolist()
    assert x._drop() is None and x._watch() is None and "float32[1,2]" in x._detail()
    x._reset(mge.tensor([5]))
    assert x.tolist() == [5] and x.dtype == "int32"


def test_getnewargs_are_the_constructors_arguments() -> None:
    x = mge.tensor([1, 2], dtype="int16", device="cpu0", name="x", format="nhwc")
    args = x.__getnewargs__()
    assert len(args) == 7 and args[2:] == ("cpu0:0", False, False, "x", "nhwc")
    again = mge.Tensor(*args)
    assert again.tolist() == [1, 2] and again.dtype == "int16" and again.device == "cpu0"
    assert (again.name, again.format) == ("x", "nhwc")


def test_a_loader_may_set_the_device_callback() -> None:
    assert mge.Tensor.dmap_callback is None
    assert mge.tensor([1.0]).dmap_callback is None


def test_products_of_vectors_after_products_of_matrices() -> None:
    # The second call of equal element types finds the launch for matrices, which takes no vectors.
    matrix, vector = mge.tensor(np.eye(2, dtype=np.float32)), mge.tensor([1.0, 2.0])
    for _ in range(2):
        np.testing.assert_array_equal((matrix @ matrix).numpy(), np.eye(2))
        assert (vector @ vector).item() == 5.0
        np.testing.assert_array_equal((matrix @ vector).numpy(), [1.0, 2.0])


def test_extrema_of_truth_values() -> None:
    x = mge.tensor([[True, False], [True, True]])
    assert x.max(axis=1).tolist() == [True, True] and x.min(axis=1).tolist() == [False, True]
    assert F.max(x).dtype == F.min(x, axis=0, keepdims=True).dtype == np.bool_
    assert not F.min(x).item() and mge.jit.compile(lambda y: y.min(axis=0))(x).tolist() == [1, 0]


def test_shapes_computed_in_floats() -> None:
    x = mge.tensor(np.arange(4, dtype="float32"))
    assert F.reshape(x, mge.tensor([2.0, 2.0])).shape == (2, 2)
    assert F.broadcast_to(x[:1], mge.tensor(3)).shape == (3,)
    with pytest.raises(TypeError, match=r"2\.5"):
        F.reshape(x, mge.tensor([2.5]))
    assert float(np.fabs(x - 2).sum()) == 4.0
    with pytest.raises(AssertionError, match="takes 3 axes"):
        F.vision.interpolate(F.ones((1, 1, 2, 2)), scale_factor=2, mode="linear")
