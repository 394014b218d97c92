"""Layers: parameter shapes, results of small cases, arguments that do not fit."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle.functional as F
import treadle.module as M
from treadle import random
from treadle.autodiff import GradManager
from treadle.base.errors import DTypeError, ShapeError
from treadle.tensor import Tensor


def _x(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))


SHAPES: dict[str, tuple[M.Module, dict[str, tuple[int, ...]]]] = {
    "linear": (M.Linear(3, 4), {"bias": (4,), "weight": (4, 3)}),
    "no_bias": (M.Linear(3, 4, bias=False), {"weight": (4, 3)}),
    "conv1d": (M.Conv1d(2, 4, 3), {"bias": (1, 4, 1), "weight": (4, 2, 3)}),
    "conv1d_groups": (
        M.Conv1d(2, 4, 3, groups=2),
        {"bias": (1, 4, 1), "weight": (2, 2, 1, 3)},
    ),
    "conv2d": (M.Conv2d(2, 4, (3, 1)), {"bias": (1, 4, 1, 1), "weight": (4, 2, 3, 1)}),
    "conv2d_groups": (
        M.Conv2d(4, 6, 3, groups=2),
        {"bias": (1, 6, 1, 1), "weight": (2, 3, 2, 3, 3)},
    ),
    "conv3d_groups": (
        M.Conv3d(4, 6, 1, groups=2, bias=False),
        {"weight": (2, 3, 2, 1, 1, 1)},
    ),
    "conv_transpose2d": (
        M.ConvTranspose2d(2, 4, 3),
        {"bias": (1, 4, 1, 1), "weight": (2, 4, 3, 3)},
    ),
    "conv_transpose2d_groups": (
        M.ConvTranspose2d(4, 6, 3, groups=2),
        {"bias": (1, 6, 1, 1), "weight": (2, 2, 3, 3, 3)},
    ),
    "conv_transpose3d": (
        M.ConvTranspose3d(2, 4, 1),
        {"bias": (1, 4, 1, 1, 1), "weight": (2, 4, 1, 1, 1)},
    ),
    "batch_norm1d": (M.BatchNorm1d(3), {"bias": (1, 3, 1, 1), "weight": (1, 3, 1, 1)}),
    "layer_norm": (M.LayerNorm((2, 3)), {"bias": (2, 3), "weight": (2, 3)}),
    "group_norm": (M.GroupNorm(2, 4), {"bias": (4,), "weight": (4,)}),
    "instance_norm": (M.InstanceNorm(4), {"bias": (4,), "weight": (4,)}),
    "general_norm": (M.GeneralNorm((2, 3), (1, 2)), {"bias": (2, 3), "weight": (2, 3)}),
    "embedding": (M.Embedding(5, 2), {"weight": (5, 2)}),
    "prelu": (M.PReLU(), {"weight": (1,)}),
    "prelu_channels": (M.PReLU(4), {"weight": (1, 4, 1, 1)}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_parameter_shapes(name: str) -> None:
    module, shapes = SHAPES[name]
    assert {key: p.shape for key, p in module.named_parameters()} == shapes


def test_layers_take_a_name() -> None:
    assert M.Linear(2, 3, name="head").name == "head"
    assert M.Conv2d(1, 1, 1, name="stem").name == "stem"
    assert M.ReLU("act").name == "act"


# What each layer computes from its parameters, as functionals.
FORWARD: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "Softmax": (M.Softmax(axis=-1), (2, 3), lambda m, x: F.softmax(x, axis=-1)),
    "Sigmoid": (M.Sigmoid(), (3,), lambda m, x: F.sigmoid(x)),
    "SiLU": (M.SiLU(), (3,), lambda m, x: x * F.sigmoid(x)),
    "GELU": (M.GELU(), (3,), lambda m, x: x * 0.5 * (1 + F.erf(x / 2**0.5))),
    "ReLU": (M.ReLU(), (5,), lambda m, x: F.maximum(x, 0)),
    "LeakyReLU": (M.LeakyReLU(0.2), (5,), lambda m, x: F.where(x > 0, x, 0.2 * x)),
    "PReLU": (M.PReLU(), (5,), lambda m, x: F.where(x > 0, x, 0.25 * x)),
    "Identity": (M.Identity(), (3,), lambda m, x: x),
    "Linear": (M.Linear(3, 2), (4, 3), lambda m, x: F.matmul(x, m.weight.T) + m.bias),
    "MaxPool2d": (M.MaxPool2d(2, 1, 1), (1, 1, 4, 4), lambda m, x: F.max_pool2d(x, 2, 1, 1)),
    "AvgPool2d": (
        M.AvgPool2d(3, padding=1, mode="average"),
        (1, 1, 5, 5),
        lambda m, x: F.avg_pool2d(x, 3, 3, 1, "average"),
    ),
    "AdaptiveAvgPool2d": (
        M.AdaptiveAvgPool2d(1),
        (2, 3, 4, 4),
        lambda m, x: F.mean(x, (2, 3), keepdims=True),
    ),
    "AdaptiveMaxPool2d": (
        M.AdaptiveMaxPool2d((1, 1)),
        (2, 3, 4, 4),
        lambda m, x: F.max(x, (2, 3), keepdims=True),
    ),
    "InstanceNorm": (M.InstanceNorm(3), (2, 3, 4), lambda m, x: M.GroupNorm(3, 3)(x)),
    "GeneralNorm": (M.GeneralNorm(4, 2), (2, 3, 4), lambda m, x: M.LayerNorm(4)(x)),
    "LocalResponseNorm": (
        M.LocalResponseNorm(3, k=1.0),
        (1, 4, 2, 2),
        lambda m, x: F.local_response_norm(x, 3, 1.0),
    ),
    "Pad": (M.Pad([(1, 0), (0, 2)], constant_val=7.0), (2, 2), lambda m, x: _padded(x)),
    "PixelShuffle": (M.PixelShuffle(2), (1, 4, 2, 3), lambda m, x: F.pixel_shuffle(x, 2)),
    "SlidingWindow": (
        M.SlidingWindow(2, stride=2),
        (1, 1, 4, 4),
        lambda m, x: F.sliding_window(x, 2, 0, 2),
    ),
    "SlidingWindowTranspose": (
        M.SlidingWindowTranspose(4, 2, stride=2),
        (1, 1, 2, 2, 2, 2),
        lambda m, x: F.sliding_window_transpose(x, (4, 4), 2, 0, 2),
    ),
    "Elemwise": (M.Elemwise("fuse_mul_add3"), (3,), None),
}


def _padded(x: Tensor) -> Tensor:
    return Tensor(np.pad(x.numpy(), [(1, 0), (0, 2)], constant_values=7.0))


@pytest.mark.parametrize("name", [n for n, case in FORWARD.items() if case[2]])
def test_forward(name: str) -> None:
    module, shape, expected = FORWARD[name]
    x = _x(*shape)
    result = module(x)
    np.testing.assert_allclose(result.numpy(), expected(module, x).numpy(), rtol=1e-5, atol=1e-6)


def test_elemwise_takes_as_many_operands_as_its_function() -> None:
    x = _x(3)
    np.testing.assert_allclose(
        M.Elemwise("FUSE_MUL_ADD3")(x, x, x).numpy(), (x * x + x).numpy(), rtol=1e-6
    )
    assert M.Elemwise("lt")(x, 0.0).dtype == bool
    with pytest.raises(ValueError, match="unknown method 'ADDD'"):
        M.Elemwise("ADDD")


def test_concat() -> None:
    assert M.Concat()([_x(2, 3), _x(2, 1)], axis=1).shape == (2, 4)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding_modes(mode: str) -> None:
    conv = M.Conv2d(1, 2, 3, padding=(1, 2), padding_mode=mode)
    x = _x(1, 1, 5, 5)
    known = "edge" if mode == "replicate" else mode
    padded = np.pad(x.numpy(), [(0, 0), (0, 0), (1, 1), (2, 2)], mode=known)  # type: ignore[call-overload]
    expected = F.conv2d(Tensor(padded), conv.weight, conv.bias)
    np.testing.assert_allclose(conv(x).numpy(), expected.numpy(), rtol=1e-6)
    with pytest.raises(ValueError, match="padding_mode must be one of"):
        M.Conv2d(1, 2, 3, padding_mode="wrap")


@pytest.mark.parametrize(
    "make",
    [
        lambda: M.Conv2d(3, 4, 3, groups=2),
        lambda: M.Conv2d(4, 3, 3, groups=2),
        lambda: M.Conv2d(4, 4, 0),
        lambda: M.Conv2d(4, 4, 3, stride=(1, 2, 3)),
        lambda: M.Conv2d(4, 4, 3, padding=-1),
        lambda: M.ConvTranspose2d(4, 4, 3, output_padding=(1,)),
        lambda: M.GroupNorm(3, 4),
        lambda: M.GeneralNorm((2, 3), 1),
        lambda: M.Embedding(3, 2, initial_weight=_x(2, 3)),
        lambda: M.Embedding.from_pretrained(_x(3)),
    ],
)
def test_sizes_that_do_not_fit(make: Any) -> None:
    with pytest.raises(ShapeError):
        make()


def test_embedding_rows_and_pretrained() -> None:
    table = _x(4, 3)
    layer = M.Embedding.from_pretrained(table)
    index = Tensor([[3, 0], [1, 3]])
    np.testing.assert_equal(layer(index).numpy(), table.numpy()[index.numpy()])
    tuned = M.Embedding.from_pretrained(table, freeze=False)
    manager = GradManager().attach([layer.weight, tuned.weight])
    with manager:
        manager.backward((layer(index) + tuned(index)).sum())
    assert layer.weight.grad is None
    np.testing.assert_equal(tuned.weight.grad.numpy().sum(1), [3, 3, 0, 6])
    with pytest.raises(ValueError, match="padding_idx is not supported"):
        M.Embedding(3, 2, padding_idx=0)


def test_dropout_only_in_training() -> None:
    random.seed(0)
    layer = M.Dropout(0.25)
    x = F.ones(10000)
    out = layer(x).numpy()
    np.testing.assert_allclose(np.unique(out), [0, 4 / 3], rtol=1e-6)
    assert 0.2 < (out == 0).mean() < 0.3
    layer.eval()
    np.testing.assert_equal(layer(x).numpy(), x.numpy())


def test_sequential_container() -> None:
    one, two, three = M.Linear(2, 3), M.ReLU(), M.Linear(3, 1)
    net = M.Sequential(one, two)
    assert net.append(three) is net
    assert len(net) == 3
    assert net.layer_values == [one, two, three]
    assert [net[0], net[-1]] == [one, three]
    assert net[1:].layer_values == [two, three]
    x = _x(4, 2)
    np.testing.assert_equal(net(x).numpy(), three(two(one(x))).numpy())
    net[1] = M.Identity()
    net[0:1] = [M.Linear(2, 3)]
    assert net[0] is not one
    del net[1]
    assert net.layer_keys == ["0", "2"]
    net.append(two)
    assert net.layer_keys == ["0", "2", "3"]
    assert [key for key, _ in net.named_parameters()] == [
        "0.bias",
        "0.weight",
        "2.bias",
        "2.weight",
    ]


def test_sequential_of_names() -> None:
    net = M.Sequential(OrderedDict(first=M.Linear(2, 3), last=M.ReLU()))
    assert net.first.weight.shape == (3, 2)
    assert list(net.state_dict()) == ["first.bias", "first.weight"]
    x = _x(2)
    assert M.Sequential()(x) is x
    with pytest.raises(ValueError, match="name is taken"):
        M.Sequential(OrderedDict(forward=M.ReLU()))
    with pytest.raises(TypeError, match="takes modules and functions, got float"):
        M.Sequential(1.0)
    with pytest.raises(TypeError, match="got the class ReLU; construct it"):
        M.Sequential(M.ReLU)
    with pytest.raises(ValueError, match="2 layers for 1 positions"):
        net[:1] = [M.ReLU(), M.ReLU()]


def test_sequential_of_functions() -> None:
    """HarDNet names its activation so: a function among modules."""
    net = M.Sequential(OrderedDict(scale=M.Linear(2, 3), relu=F.relu6))
    assert net.relu is F.relu6
    assert list(net.state_dict()) == ["scale.bias", "scale.weight"]
    x = _x(2)
    np.testing.assert_array_equal(net(x).numpy(), F.relu6(net.scale(x)).numpy())


def test_slices_of_a_sequential_keep_its_class() -> None:
    class Twice(M.Sequential):
        def forward(self, inp: Tensor) -> Any:
            return super().forward(inp) * 2

    class Block(M.Sequential):
        def __init__(self, width: int) -> None:
            super().__init__(M.Linear(width, width), M.ReLU())

    assert type(Twice(M.ReLU(), M.ReLU())[1:]) is Twice
    assert type(Block(2)[:1]) is M.Sequential


class Attention(M.Module):
    """Causal self-attention, written by hand as users do."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = M.Linear(dim, 3 * dim)
        self.out = M.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        qkv = self.qkv(x).reshape(n, t, 3, self.heads, d // self.heads).transpose(2, 0, 3, 1, 4)
        scores = F.matmul(qkv[0], qkv[1], transpose_b=True) * (d // self.heads) ** -0.5
        scores = scores + Tensor(np.triu(np.full((t, t), -1e9, np.float32), 1))
        mixed = F.matmul(F.softmax(scores, axis=-1), qkv[2])
        return self.out(mixed.transpose(0, 2, 1, 3).reshape(n, t, d))


class Block(M.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norms = [M.LayerNorm(dim), M.LayerNorm(dim)]
        self.attention = Attention(dim, 2)
        self.mlp = M.Sequential(M.Linear(dim, 2 * dim), M.GELU(), M.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


def test_a_transformer_learns_to_copy() -> None:
    from treadle.optimizer import AdamW, clip_grad_norm

    random.seed(0)
    net = M.Sequential(M.Embedding(8, 16), Block(16), M.LayerNorm(16), M.Linear(16, 8))
    tokens = np.random.default_rng(0).integers(0, 8, (8, 6))
    inputs, labels = Tensor(tokens[:, :-1]), Tensor(tokens[:, :-1].reshape(-1))
    manager = GradManager().attach(net.parameters())
    optimizer = AdamW(net.parameters(), lr=0.02)
    losses = []
    for _ in range(30):
        with manager:
            loss = F.loss.cross_entropy(net(inputs).reshape(-1, 8), labels)
            manager.backward(loss)
        clip_grad_norm(net.parameters(), 1.0)
        optimizer.step().clear_grad()
        losses.append(loss.item())
    assert losses[0] > 1.5
    assert losses[-1] < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: M.Linear(-2, 3), "Linear: in_features: expects an int of at least 0"),
        (lambda: M.Linear(2, -3), "Linear: out_features: expects"),
        (lambda: M.Conv2d(0, 1, 3), "Conv2d: in_channels: expects an int of at least 1"),
        (lambda: M.ConvTranspose2d(1, 0, 3), "ConvTranspose2d: out_channels: expects"),
        (lambda: M.Conv2d(1, 1, 0), "Conv2d: kernel_size: expects an int or 2 ints"),
        (lambda: M.MaxPool2d(0), "MaxPool2d: kernel_size: expects"),
        (lambda: M.MaxPool2d(2, 0), "MaxPool2d: stride: expects"),
        (lambda: M.AvgPool2d(2, padding=-1), "AvgPool2d: padding: expects"),
        (lambda: M.AdaptiveAvgPool2d((1, 0)), "AdaptiveAvgPool2d: oshp: expects"),
        (lambda: M.AdaptiveMaxPool2d((1, 1, 1)), "AdaptiveMaxPool2d: oshp: expects"),
        (lambda: M.Embedding(-1, 2), "Embedding: num_embeddings: expects"),
        (lambda: M.Embedding(2, -1), "Embedding: embedding_dim: expects"),
        (lambda: M.BatchNorm2d(-1), "BatchNorm2d: num_features: expects"),
        (lambda: M.LayerNorm((2, -1)), "LayerNorm: extents: expects"),
        (lambda: M.PReLU(0), "PReLU: num_parameters: expects"),
    ],
)
def test_sizes_are_checked_when_a_layer_is_made(make: Callable[[], M.Module], message: str) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        make()
    assert caught.value.saw and caught.value.hint


def test_sizes_are_integers_of_any_kind() -> None:
    assert M.Conv2d(1, 1, np.int64(3)).kernel_size == (3, 3)  # type: ignore[arg-type]
    for make in (lambda: M.Linear(2.5, 3), lambda: M.MaxPool2d(2.5)):  # type: ignore[arg-type]
        with pytest.raises(DTypeError, match="expects an int"):
            make()


@pytest.mark.parametrize("wrong", [2.0, 1.0, -0.1])
def test_a_dropout_probability_is_checked_when_the_layer_is_made(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"Dropout: drop_prob must be in \[0, 1\)"):
        M.Dropout(wrong)


def test_general_norm_without_extents() -> None:
    layer, x = M.GeneralNorm(normalized_axis=(1, 2), affine=False), _x(2, 3, 4)
    wanted = F.general_norm(x, (1, 2), affine=False)
    np.testing.assert_array_equal(layer(x).numpy(), wanted.numpy())
    with pytest.raises(ShapeError, match="one extent for each axis"):
        M.GeneralNorm(normalized_axis=1)
