"""Update rules against MegEngine's values, groups, state and resuming."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treadle.autodiff import GradManager
from treadle.base.errors import ShapeError
from treadle.optimizer import SGD, Adadelta, Adagrad, Adam, AdamW, Optimizer
from treadle.serialization import load, save
from treadle.tensor import Parameter, Tensor

Make = Callable[[Any], Optimizer]

# Three steps with gradient [1, -2] from [1, 2]: values of MegEngine 1.13.
RULES: dict[str, tuple[Make, list[float]]] = {
    "sgd": (lambda p: SGD(p, 0.1), [0.7, 2.6]),
    "momentum": (lambda p: SGD(p, 0.1, momentum=0.9), [0.439, 3.122]),
    "nesterov": (lambda p: SGD(p, 0.1, momentum=0.9, nesterov=True), [0.1951, 3.6098]),
    "adam": (lambda p: Adam(p, 0.1), [0.7, 2.3]),
    "adamw": (lambda p: AdamW(p, 0.1), [0.697303, 2.293706]),
    "adagrad": (lambda p: Adagrad(p, 0.1, lr_decay=0.1), [0.787605, 2.212395]),
    "adadelta": (lambda p: Adadelta(p, 1.0), [0.990293, 2.009708]),
}
every_rule = pytest.mark.parametrize("make", [r[0] for r in RULES.values()], ids=list(RULES))


def _run(optimizer: Optimizer, steps: int = 3, first: int = 0) -> None:
    for i in range(first, first + steps):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = Tensor(np.resize([1.0, -2.0], p.shape) * (1 + 0.1 * i), dtype=p.dtype)
        optimizer.step().clear_grad()


@pytest.mark.parametrize("name", RULES)
def test_three_steps(name: str) -> None:
    make, expected = RULES[name]
    param = Parameter([1.0, 2.0])
    optimizer = make([param])
    for _ in range(3):
        param.grad = Tensor([1.0, -2.0])
        assert optimizer.step() is optimizer
    np.testing.assert_allclose(param.numpy(), expected, rtol=2e-6)
    assert type(param) is Parameter


@every_rule
def test_weight_decay_pulls_towards_zero(make: Make) -> None:
    kept, pulled = Parameter([10.0]), Parameter([10.0])
    groups = [{"params": kept, "weight_decay": 0.0}, {"params": pulled, "weight_decay": 0.5}]
    optimizer = make(groups)
    for _ in range(3):
        kept.grad = pulled.grad = Tensor([0.0])
        optimizer.step()
    assert kept.item() == 10.0
    assert pulled.item() < 10.0


@every_rule
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types_keep_their_type(make: Make, dtype: str) -> None:
    param = Parameter(np.array([1.0, 2.0]), dtype=dtype)
    wide = Parameter(np.array([1.0, 2.0]), dtype="float64")
    for p in (param, wide):
        _run(make([p]))
    assert str(param.dtype) == dtype
    tolerance = 1e-12 if dtype == "float64" else 2e-2
    np.testing.assert_allclose(
        param.numpy().astype("float64"), wide.numpy(), rtol=tolerance, atol=tolerance
    )


@every_rule
def test_zero_dimensional_and_empty_parameters(make: Make) -> None:
    scalar, empty = Parameter(3.0), Parameter(np.zeros((0, 2), np.float32))
    _run(make([scalar, empty]))
    assert scalar.shape == ()
    assert scalar.item() != 3.0
    assert empty.shape == (0, 2)


@every_rule
def test_parameters_without_gradient_are_skipped(make: Make) -> None:
    one, two = Parameter([1.0]), Parameter([1.0])
    optimizer = make([one, two])
    one.grad = Tensor([1.0])
    optimizer.step()
    assert one.item() != 1.0
    assert two.item() == 1.0


@every_rule
def test_resumes_bit_for_bit(make: Make) -> None:
    straight = [Parameter([[1.0, 2.0]]), Parameter(0.5)]
    optimizer = make(straight)
    _run(optimizer, 4)
    broken = [Parameter([[1.0, 2.0]]), Parameter(0.5)]
    first = make(broken)
    _run(first, 2)
    saved = copy.deepcopy(first.state_dict())
    resumed = [Parameter(p.numpy()) for p in broken]
    second = make(resumed)
    second.load_state_dict(saved)
    _run(second, 2, first=2)
    for p, q in zip(straight, resumed, strict=True):
        assert p.numpy().tobytes() == q.numpy().tobytes()
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            np.testing.assert_equal(second.state_dict()["state"][index][name], value)


@every_rule
def test_resumes_from_a_file(make: Make, tmp_path: Path) -> None:
    param = Parameter([1.0, 2.0])
    optimizer = make([param])
    _run(optimizer, 2)
    save({"model": param, "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint")
    loaded = load(tmp_path / "checkpoint")
    second = make([loaded["model"]])
    second.load_state_dict(loaded["optimizer"])
    for each in (optimizer, second):
        _run(each, 2, first=2)
    assert param.numpy().tobytes() == loaded["model"].numpy().tobytes()


@every_rule
def test_copies_go_their_own_way(make: Make) -> None:
    param = Parameter([1.0, 2.0])
    optimizer = make([param])
    _run(optimizer, 1)
    before = param.numpy().copy()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        _run(twin, 2, first=1)
        np.testing.assert_equal(param.numpy(), before)
        reference = copy.deepcopy(optimizer)
        _run(reference, 2, first=1)
        results = [o.param_groups[0]["params"][0].numpy() for o in (twin, reference)]
        np.testing.assert_equal(*results)
        assert not np.array_equal(results[0], before)


def test_state_dict_replaces_parameters_by_indices() -> None:
    one, two = Parameter([1.0, 2.0]), Parameter([3.0])
    optimizer = Adam([{"params": one, "lr": 0.5}, {"params": [two]}], lr=0.1)
    _run(optimizer, 1)
    saved = optimizer.state_dict()
    assert saved["param_groups"] == [
        {"lr": 0.5, "weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "params": [0]},
        {"lr": 0.1, "weight_decay": 0.0, "betas": (0.9, 0.999), "eps": 1e-8, "params": [1]},
    ]
    assert sorted(saved["state"]) == [0, 1]
    assert {name: v.shape for name, v in saved["state"][0].items()} == {
        "exp_avg": (2,),
        "exp_avg_sq": (2,),
        "step": (),
    }
    assert saved["state"][0]["step"] == 1
    assert all(isinstance(v, np.ndarray) for v in saved["state"][1].values())
    kept = optimizer.state_dict(keep_var=True)["state"][0]["exp_avg"]
    assert isinstance(kept, Tensor)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s["param_groups"].append({}), ValueError, "different number of parameter gr"),
        (lambda s: s["param_groups"][0]["params"].append(1), ValueError, "match the size"),
        (lambda s: s["param_groups"][0].pop("lr"), ValueError, r"without \['lr'\]"),
        (lambda s: s["state"][0].pop("step"), ValueError, "expected .*'step'"),
        (lambda s: s["state"].clear(), ValueError, "has state"),
        (
            lambda s: s["state"][0].update(exp_avg=np.zeros(3, np.float32)),
            ShapeError,
            "`exp_avg` shape mismatch",
        ),
    ],
)
def test_states_that_do_not_fit_are_refused(change: Any, error: Any, message: str) -> None:
    optimizer = Adam([Parameter([1.0, 2.0])], lr=0.1)
    before = copy.deepcopy(optimizer.state_dict())
    saved = copy.deepcopy(before)
    saved["param_groups"][0]["eps"] = 1.0
    change(saved)
    with pytest.raises(error, match=message):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["eps"] == before["param_groups"][0]["eps"]


def test_groups_have_their_own_hyper_parameters() -> None:
    slow, fast = Parameter([1.0]), Parameter([1.0])
    optimizer = SGD([{"params": [slow], "lr": 0.01}, {"params": [fast]}], lr=0.1)
    _run(optimizer, 1)
    np.testing.assert_allclose([slow.item(), fast.item()], [0.99, 0.9], rtol=1e-6)
    late = Parameter([1.0])
    optimizer.add_param_group({"params": late, "lr": 1.0})
    _run(optimizer, 1)
    assert late.item() == 0.0


def test_hyper_parameters_are_read_at_every_step() -> None:
    param = Parameter([1.0])
    optimizer = SGD([param], lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.5
    _run(optimizer, 1)
    assert param.item() == 0.5
    optimizer.param_groups[0]["momentum"] = 0.9
    _run(optimizer, 2)
    np.testing.assert_allclose(param.item(), 0.5 - 0.5 * (1.0 + 0.9 + 1.1), rtol=1e-6)


def test_what_can_be_optimized() -> None:
    param = Parameter([1.0])
    for given in (param, [param], {param}, iter([param]), {"params": param}, [{"params": [param]}]):
        assert SGD(given, 0.1).param_groups[0]["params"][0] is param
    with pytest.raises(ValueError, match="empty parameter list"):
        SGD([], 0.1)
    # Programs sort parameters into groups with and without decay, and one may stay empty.
    groups = SGD([{"params": []}, {"params": param, "weight_decay": 0.1}], 0.1)
    groups.add_param_group({"params": []})
    param.grad = Tensor([2.0])
    assert groups.step() is groups and param.item() == pytest.approx(0.79)
    with pytest.raises(TypeError, match=r"only optimize Parameters, .* Tensor"):
        SGD([Tensor([1.0])], 0.1)
    with pytest.raises(TypeError, match="one of the params is tuple"):
        SGD([("weight", param)], 0.1)
    with pytest.raises(TypeError, match="Parameter or iterable"):
        SGD(1.0, 0.1)
    for twice in ([param, param], [{"params": param}, {"params": param}]):
        with pytest.raises(AssertionError, match="appears twice"):
            SGD(twice, 0.1)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: SGD(p, -0.1), AssertionError),
        (lambda p: SGD(p, 0.1, momentum=-1), AssertionError),
        (lambda p: SGD(p, 0.1, nesterov=True), AssertionError),
        (lambda p: Adagrad(p, eps=-1), AssertionError),
        (lambda p: Adadelta(p, rho=1.5), AssertionError),
        (lambda p: Adam(p, -1), ValueError),
        (lambda p: Adam(p, 0.1, betas=(0.9, 1.0)), ValueError),
        (lambda p: AdamW(p, 0.1, weight_decay=-1), ValueError),
    ],
)
def test_hyper_parameters_out_of_range(make: Make, error: Any) -> None:
    with pytest.raises(error):
        make([Parameter([1.0])])


@pytest.mark.parametrize("make", [Adam, AdamW])
def test_moments_without_memory(make: Any) -> None:
    """GANs train with betas=(0, 0.9); without either memory, steps go by signs."""
    param = Parameter([1.0, -2.0])
    optimizer = make([param], 0.5, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0)
    for wanted in ([0.5, -1.5], [0.0, -1.0]):
        param.grad = Tensor([3.0, -7.0])
        optimizer.step()
        np.testing.assert_allclose(param.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_subclass_may_require_a_hyper_parameter() -> None:
    from treadle.optimizer.optimizer import required

    class Plain(Optimizer):
        def _create_state(self, param_group: dict[str, Any]) -> None: ...

        def _updates(self, param_group: dict[str, Any]) -> None:
            for p in param_group["params"]:
                p._reset(p - p.grad * param_group["lr"])

    param = Parameter([1.0])
    with pytest.raises(ValueError, match="must specify 'lr'"):
        Plain(param, {"lr": required})
    _run(Plain({"params": param, "lr": 0.25}, {"lr": required}), 1)
    assert param.item() == 0.75


def test_clear_grad_and_what_is_elsewhere() -> None:
    param = Parameter([1.0])
    optimizer = SGD(param, 0.1)
    param.grad = Tensor([1.0])
    assert optimizer.clear_grad() is None
    assert param.grad is None
    with pytest.warns(DeprecationWarning, match="clear_grad"):
        optimizer.zero_grad()
    with pytest.raises(NotImplementedError, match="GradManager"):
        optimizer.backward(param)
    with pytest.raises(NotImplementedError, match="bcast_list_"):
        optimizer.bcast_param()


@every_rule
def test_steps_are_not_recorded(make: Make) -> None:
    param = Parameter([1.0, 2.0])
    optimizer = make([param])
    manager = GradManager().attach(param)
    with manager:
        param.grad = Tensor([1.0, -2.0])
        optimizer.step()
        assert param._trace is None
        param.grad = None
        manager.backward((param * param).sum())
    assert param.grad is None


def test_regression_reaches_the_optimum() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype("float32")
    truth = np.array([1.0, -2.0, 0.5], np.float32)
    y = Tensor(x @ truth + 0.25)
    weight, bias = Parameter(np.zeros(3, np.float32)), Parameter(0.0)
    inputs = Tensor(x)
    manager = GradManager().attach([weight, bias])
    optimizer = SGD([weight, bias], lr=0.1)
    for _ in range(150):
        with manager:
            error = (inputs * weight).sum(1) + bias - y
            manager.backward((error * error).sum() / 64.0)
        optimizer.step().clear_grad()
    np.testing.assert_allclose(weight.numpy(), truth, atol=1e-3)
    assert abs(bias.item() - 0.25) < 1e-3


def test_a_users_optimizer_keeps_state_of_any_kind() -> None:
    class Own(Optimizer):
        def _create_state(self, param_group: Any) -> None:
            for param in param_group["params"]:
                self._add_state(param, "zeros")
                self._add_state(param, "count", initializer=0.0)
                self._add_state(param, "copy", initializer=param)
                self._add_state(param, "whole", initializer=3, dtype="int32")

        def _updates(self, param_group: Any) -> None:
            for param in param_group["params"]:
                if param.grad is not None:
                    self._state[param]["count"] += 1.0
                    param -= param_group["lr"] * param.grad

    param = Parameter([1.0, 2.0], dtype="float16")
    optimizer = Own([param], {"lr": 0.5})
    param.grad = Tensor([1.0, 1.0], dtype="float16")
    optimizer.step()
    state = optimizer.state_dict()["state"][0]
    assert {k: v.dtype.name for k, v in state.items()} == {
        "zeros": "float32",
        "count": "float32",
        "copy": "float16",
        "whole": "int32",
    }
    assert (state["count"], state["copy"].tolist(), state["whole"]) == (1.0, [1.0, 2.0], 3)
    assert param.tolist() == [0.5, 1.5]
