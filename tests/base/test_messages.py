"""What users of PyTorch and NumPy write by habit: taken where the meaning is clear, else answered.

Of the mistakes that new users made on purpose, with what the message must say.
"""

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as O
from treadle.autodiff import GradManager
from treadle.base.errors import ShapeError
from treadle.data.dataset import ArrayDataset
from treadle.trainer import Trainer

NUMBERS = np.arange(24, dtype="float32").reshape(2, 3, 4)
x = mge.tensor(NUMBERS)
net = M.Sequential(M.Linear(4, 3))
labels = mge.tensor([0, 1], dtype="int32")
scores = mge.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])


def sgd() -> O.Optimizer:
    return O.SGD(net.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lambda: x.sum(dim=1), lambda: x.sum(axis=1)),
        (lambda: x.mean(dim=(0, 1), keepdim=True), lambda: x.mean((0, 1), True)),
        (lambda: x.prod(dim=-1), lambda: x.prod(-1)),
        (lambda: F.sum(x, dim=1, keepdim=True), lambda: F.sum(x, 1, True)),
        (lambda: F.mean(x, 1, keepdim=True), lambda: F.mean(x, 1, True)),
        (lambda: F.prod(x, dim=0), lambda: F.prod(x, 0)),
        (lambda: F.all(x, dim=1), lambda: F.all(x, 1)),
        (lambda: F.any(x, dim=1), lambda: F.any(x, 1)),
        (lambda: F.argmax(x, dim=1), lambda: F.argmax(x, 1)),
        (lambda: F.argmin(x, dim=1, keepdim=True), lambda: F.argmin(x, 1, True)),
        (lambda: F.norm(x, p=1, dim=1, keepdim=True), lambda: F.norm(x, 1, 1, True)),
        (lambda: F.normalize(x, p=1, dim=2), lambda: F.normalize(x, 1, 2)),
        (lambda: F.softmax(x, dim=2), lambda: F.softmax(x, 2)),
        (lambda: F.logsoftmax(x, dim=1), lambda: F.logsoftmax(x, 1)),
        (lambda: F.logsumexp(x, dim=1, keepdim=True), lambda: F.logsumexp(x, 1, True)),
        (lambda: F.concat([x, x], dim=1), lambda: F.concat([x, x], 1)),
        (lambda: F.stack([x, x], dim=1), lambda: F.stack([x, x], 1)),
        (lambda: F.squeeze(x[:1], dim=0), lambda: x[0]),
        (lambda: F.flatten(x, start_dim=1, end_dim=2), lambda: F.flatten(x, 1, 2)),
        (lambda: F.cumsum(x, dim=1), lambda: F.cumsum(x, 1)),
        (lambda: F.roll(x, 1, dims=1), lambda: F.roll(x, 1, 1)),
        (lambda: F.pad(x, [(1, 0)], value=2.0), lambda: F.pad(x, [(1, 0)], constant_value=2.0)),
        (lambda: F.dropout(x, p=0.5, training=False), lambda: x),
        (lambda: F.ones(2, 3), lambda: F.ones((2, 3))),
        (lambda: F.zeros(2, 3, dtype="int32"), lambda: F.zeros((2, 3), dtype="int32")),
        (lambda: x.to(dtype="int32"), lambda: x.astype("int32")),
        (lambda: x.to("cpux", dtype="int32"), lambda: x.to("cpux").astype("int32")),
        (
            lambda: F.loss.cross_entropy(scores, labels, label_smoothing=0.1),
            lambda: F.loss.cross_entropy(scores, labels, label_smooth=0.1),
        ),
        (lambda: M.Softmax(dim=1)(x), lambda: M.Softmax(1)(x)),
        (lambda: M.Dropout(p=0.25).drop_prob, lambda: 0.25),
        (lambda: O.CosineAnnealingLR(sgd(), T_max=10, last_epoch=-1).t_max, lambda: 10),
        (lambda: O.LambdaLR(sgd(), lr_lambda=lambda _: 0.5).get_lr()[0], lambda: 0.05),
    ],
)
def test_keywords_with_one_meaning_are_taken(
    theirs: Callable[[], Any], ours: Callable[[], Any]
) -> None:
    found, wanted = theirs(), ours()
    assert np.shape(found) == np.shape(wanted)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))


def backward(y: Any) -> None:
    manager = GradManager().attach(net.parameters())
    with manager:
        manager.backward(y)


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (lambda: F.sum(x, axis=1, dim=1), "axis= is given twice"),
        (lambda: F.concat([x, x], axis=1, dim=1), "axis= is given twice"),
        (lambda: M.Dropout(drop_prob=0.5, p=0.5), "got 'drop_prob' twice, once as 'p'"),
        (lambda: F.logsoftmax(x), "missing axis"),
        (lambda: F.cumsum(x), "missing axis"),
        (lambda: F.dropout(x), "missing drop_prob"),
        (lambda: x.max(dim=1), "is F.max(x, axis) and F.argmax(x, axis)"),
        (lambda: F.min(x, dim=1), "is F.min(x, axis) and F.argmin(x, axis)"),
        (lambda: F.var(x, dim=1), "as PyTorch does with correction=0"),
        (lambda: F.std(x, dim=1, keepdim=True), "divides by the count"),
        (lambda: x.size(0), "write x.shape, or x.shape[axis]"),
        (lambda: x.to("float16"), "did you mean x.astype('float16')"),
        (lambda: x.transpose(1, 2), "F.swapaxes(x, i, j) exchanges two"),
        (lambda: F.transpose(x, 1, 2), "F.swapaxes(x, i, j) exchanges two"),
        (lambda: F.pad(x, (1, 2)), "pass [(0, 0), (0, 0), (1, 2)]"),
        (lambda: F.pad(x, (1, 2, 3, 4)), "pass [(0, 0), (3, 4), (1, 2)]"),
        (lambda: F.pad(x, 1), "[(1, 1), (1, 1), (1, 1)] adds one at every end"),
        (lambda: F.fill_(x, 1), "did you mean x[...] = value?"),
        (lambda: mge.tensor([1.0], requires_grad=True), "GradManager().attach(tensor)"),
        (lambda: x.requires_grad, "GradManager().attach(x)"),
        (lambda: bool(x > 0), "reduce it first (F.any, F.all"),
        (lambda: M.Linear(3, 4, device="cpux"), "make it, then move it: .to(device)"),
        (lambda: M.Linear(3, 4, bais=False), "did you mean bias=?"),
        (lambda: M.ReLU(inplace=True), "tensors are immutable"),
        (lambda: O.SGD(net.parameters(), lr=0.1, maximize=True), "negate the loss"),
        (lambda: O.SGD(net, lr=0.1), "pass net.parameters()"),
        (lambda: O.StepLR(sgd(), 10, verbose=True), "log optimizer.param_groups[0]['lr']"),
        (lambda: mge.jit.compile(net, mode="max-autotune"), "level=0, 1 or 2"),
        (lambda: mge.jit.compile(net, fullgraph=True), "always one program"),
        (lambda: GradManager().attach(net), "gm.attach(net.parameters())"),
        (lambda: GradManager().attach(net.state_dict()), "gm.attach(net.parameters())"),
        (lambda: GradManager().backward(x), "inside of `with gm:`"),
        (lambda: backward(1.0), "pass the loss itself, not loss.item()"),
        (lambda: Trainer(net, "adam", F.loss.cross_entropy), "treadle.optimizer.Adam("),  # type: ignore[arg-type]
        (lambda: Trainer(net, None, "mse"), "loss should be a function"),  # type: ignore[arg-type]
        (lambda: ArrayDataset(np.zeros(4), np.zeros(5)), "one entry per sample"),
        (
            lambda: F.loss.cross_entropy(scores, F.one_hot(labels, 3)),
            "F.argmax(label, axis=1)",
        ),
        (lambda: F.loss.cross_entropy(scores, labels.reshape(2, 1)), "F.squeeze(label, 1)"),
        (lambda: F.loss.cross_entropy(labels, scores), "pred comes first"),
    ],
)
def test_what_has_no_clear_meaning_is_answered(wrong: Callable[[], Any], advice: str) -> None:
    with pytest.raises(Exception, match=re.escape(advice)):
        wrong()


def test_a_class_without_forward_says_what_to_define() -> None:
    class Net(M.Module):
        pass

    with pytest.raises(TypeError) as caught:
        Net()  # type: ignore[abstract]
    assert caught.value.__notes__ == ["  hint: define forward in class Net"]


def test_errors_of_a_constructor_itself_are_not_touched() -> None:
    class Net(M.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            raise TypeError(f"of the body: {dim}")

        def forward(self) -> None:
            """Does nothing."""

    with pytest.raises(TypeError, match=r"^of the body: 3$"):
        Net(dim=3)


def test_an_error_says_which_layer_it_left() -> None:
    class Block(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [M.ReLU(), M.Linear(5, 3)]

        def forward(self, inp: mge.Tensor) -> mge.Tensor:
            """Run the layers."""
            for layer in self.layers:
                inp = layer(inp)
            return inp

    nested = M.Sequential(M.Linear(4, 5), Block(), Block())
    where = "  in:   2.layers.1, of class Linear"
    for run in (nested, mge.jit.compile(nested)):
        with pytest.raises(ShapeError, match="the features, differ") as caught:
            run(x)
        notes = caught.value.__notes__
        assert notes[0] == where and sum(n.startswith("  in:") for n in notes) == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.__notes__[0] == where
    with pytest.raises(ShapeError) as alone:
        M.Linear(5, 3)(x)
    assert not any(n.startswith("  in:") for n in alone.value.__notes__)


def test_the_number_of_elements_is_a_plain_number() -> None:
    assert (x.size, x.size + 1, f"{x.size}") == (24, 25, "24")
    assert type(pickle.loads(pickle.dumps(x.size))) is int
    assert type(copy.deepcopy(x.size)) is int
    assert F.ones(x.size).shape == (24,)
