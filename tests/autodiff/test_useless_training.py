"""Training that changes nothing says so once, with the reason and the user's line."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.backends.plugins import logged

import treadle as mge
import treadle.functional as F
import treadle.module as M
import treadle.optimizer as O
from treadle.amp import GradScaler
from treadle.autodiff import GradManager

X = np.ones((4, 3), "float32")


def nothing_attached(net: M.Module) -> None:
    gm = GradManager()
    with gm:
        gm.backward(net(mge.tensor(X)).sum())


def loss_outside_of_the_block(net: M.Module) -> None:
    gm = GradManager().attach(net.parameters())
    loss = net(mge.tensor(X)).sum()
    with gm:
        gm.backward(loss)


def cut_by_numpy(net: M.Module) -> None:
    gm = GradManager().attach(net.parameters())
    with gm:
        gm.backward(mge.tensor(net(mge.tensor(X)).numpy()).sum())


def cut_by_detach(net: M.Module) -> None:
    gm, other = GradManager().attach(net.parameters()), mge.Parameter(np.ones(1, "float32"))
    gm2 = GradManager().attach(other)
    with gm2:
        gm2.backward((other * 2).sum())
    with gm:
        hidden = net(mge.tensor(X))
        gm.backward((hidden.detach() + F.exp(hidden).detach()).sum())


def step_without_gradients(net: M.Module) -> None:
    O.Adam(net.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (nothing_attached, "no tensor is attached. Call gm.attach(net.parameters())"),
        (loss_outside_of_the_block, "y depends on none of the 2 attached tensors"),
        (cut_by_numpy, "y depends on none of the 2 attached tensors"),
        (cut_by_detach, "y depends on none of the 2 attached tensors"),
        (step_without_gradients, "Adam.step changes nothing: none of its 2 parameters"),
    ],
)
def test_training_that_does_nothing_says_so(train: Callable[[M.Module], None], why: str) -> None:
    net = M.Linear(3, 2)
    before = net.weight.numpy().copy()
    with logged() as lines:
        train(net)
    (line,) = lines
    assert why in line
    place = line.rpartition("At ")[2]
    assert "test_useless_training.py" in place and place.endswith(train.__name__)
    np.testing.assert_array_equal(net.weight.numpy(), before)


def test_it_is_said_once_and_not_where_something_is_trained() -> None:
    net = M.Linear(3, 2)
    gm, opt = GradManager().attach(net.parameters()), O.SGD(net.parameters(), lr=0.1)
    frozen = GradManager().attach(M.Linear(3, 2).weight)
    with logged() as lines:
        for _ in range(2):
            with gm:
                gm.backward(net(mge.tensor(X)).sum())
            opt.step().clear_grad()
        opt.step()
        for _ in range(2):
            with frozen:
                frozen.backward(net(mge.tensor(X)).sum())
    assert len(lines) == 1 and "GradManager.backward gives no gradient" in lines[0]


def test_a_step_after_an_overflow_is_no_mistake() -> None:
    """The first steps of mixed precision overflow until the factor fits."""
    net, scaler = M.Linear(3, 2), GradScaler(init_scale=1e38)
    gm, opt = GradManager().attach(net.parameters()), O.SGD(net.parameters(), lr=0.1)
    with logged() as lines:
        with gm:
            scaler.backward(gm, (net(mge.tensor(X)) * 1e5).sum())
        opt.step()
    assert not lines and net.weight.grad is None
    with logged() as lines:
        step_without_gradients(M.Linear(3, 2))
    assert len(lines) == 1


@pytest.mark.parametrize("backwards", [1, 2])
def test_gradients_that_add_up_over_steps_are_told_of_once(backwards: int) -> None:
    """`clear_grad` was forgotten; several `backward` calls for one step are another thing."""
    net = M.Linear(3, 2)
    gm, opt = GradManager().attach(net.parameters()), O.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        for _ in range(backwards):
            with gm:
                gm.backward(net(mge.tensor(X)).sum())
        opt.step()

    with logged() as lines:
        for _ in range(3):
            step()
            opt.clear_grad()
        step()
        opt.step()  # Twice by the same gradient, on purpose.
        opt.clear_grad()
        step()
        with gm:  # As the generator's loss does to a discriminator, which clears before its turn.
            gm.backward(net(mge.tensor(X)).sum())
        opt.clear_grad()
        step()
        assert not lines
        step()
        step()
    (line,) = lines
    assert "SGD.step uses gradients of an earlier step again" in line
    assert "opt.step().clear_grad()" in line and line.endswith("in step")
