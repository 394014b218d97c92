"""The namespace: MegEngine's names are there, and wrong guesses are answered."""

import importlib
import inspect

import pytest

import treadle as mge
import treadle.functional as F

FLAT = [
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "clip",
    "cos",
    "cosh",
    "div",
    "equal",
    "erf",
    "exp",
    "expm1",
    "floor",
    "floor_div",
    "greater",
    "greater_equal",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "right_shift",
    "round",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
    "argmax",
    "argmin",
    "argsort",
    "cross",
    "dot",
    "isinf",
    "isnan",
    "matinv",
    "matmul",
    "max",
    "mean",
    "min",
    "norm",
    "normalize",
    "prod",
    "sign",
    "sort",
    "std",
    "sum",
    "svd",
    "topk",
    "var",
    "arange",
    "broadcast_to",
    "concat",
    "cond_take",
    "copy",
    "cumsum",
    "diag",
    "expand_dims",
    "eye",
    "flatten",
    "full",
    "full_like",
    "gather",
    "linspace",
    "meshgrid",
    "non_zero",
    "ones",
    "ones_like",
    "repeat",
    "reshape",
    "roll",
    "scatter",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "tile",
    "transpose",
    "where",
    "zeros",
    "zeros_like",
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "avg_pool2d",
    "batch_norm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "conv_transpose3d",
    "deformable_conv2d",
    "dropout",
    "embedding",
    "gelu",
    "general_norm",
    "group_norm",
    "hsigmoid",
    "hswish",
    "indexing_one_hot",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_conv2d",
    "local_response_norm",
    "logsigmoid",
    "logsoftmax",
    "logsumexp",
    "max_pool2d",
    "one_hot",
    "pad",
    "pixel_shuffle",
    "prelu",
    "relu",
    "relu6",
    "remap",
    "sigmoid",
    "silu",
    "sliding_window",
    "sliding_window_transpose",
    "softmax",
    "softplus",
    "einsum",
    "topk_accuracy",
]
LOSSES = ["binary_cross_entropy", "cross_entropy", "hinge_loss", "l1_loss", "square_loss"]


@pytest.mark.parametrize("name", FLAT)
def test_flat_names_are_documented_functions(name: str) -> None:
    function = getattr(F, name)
    assert callable(function) and inspect.getdoc(function)
    assert name in F.__all__
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is not parameter.VAR_KEYWORD


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_in_nn_and_loss_but_not_flat(name: str) -> None:
    assert getattr(F.nn, name) is getattr(F.loss, name)
    with pytest.raises(AttributeError, match=rf"has no '{name}'"):
        getattr(F, name)


def test_submodules_can_be_imported() -> None:
    for name in ("elemwise", "math", "tensor", "nn", "loss", "metric", "vision"):
        module = importlib.import_module(f"treadle.functional.{name}")
        assert getattr(F, name) is module
        for public in module.__all__:
            assert inspect.getdoc(getattr(module, public))
    assert F.nn.interpolate is F.vision.interpolate and F.nn.conv2d is F.conv2d


@pytest.mark.parametrize(
    ("guess", "advice"),
    [
        ("cat", "F.concat"),
        ("clamp", "F.clip"),
        ("unsqueeze", "F.expand_dims"),
        ("permute", "F.transpose"),
        ("mse_loss", "F.nn.square_loss"),
        ("cross_entropy", "F.nn.cross_entropy"),
        ("randn", "treadle.random.normal"),
        ("log_softmax", "F.logsoftmax"),
        ("sofmax", "F.softmax"),
        ("concatt", "F.concat"),
    ],
)
def test_a_wrong_guess_is_answered_with_the_right_name(guess: str, advice: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(F, guess)
    assert str(caught.value).startswith(f"treadle.functional has no {guess!r}; did you mean")
    assert advice in str(caught.value)
    assert not hasattr(F, guess)


def test_nonsense_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^treadle.functional has no 'qqqq'$"):
        F.qqqq
    with pytest.raises(ImportError):
        importlib.import_module("treadle.functional.qqqq")


def test_advice_names_what_exists() -> None:
    from treadle.base import spelling

    for text in [*spelling._FUNCTIONS.values(), *spelling._METHODS.values()]:
        for word in text.replace("(", " ").replace(")", " ").split():
            owner, *path = word.rstrip(",").split(".")
            if owner in ("F", "treadle") and path:
                found = F if owner == "F" else mge
                for part in path:
                    found = getattr(found, part)
