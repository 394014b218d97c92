"""`Optimizer`: parameter groups, per-parameter state, and the step that updates them."""

from __future__ import annotations

import abc
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

import treadle.functional as F
from treadle.autodiff import no_grad
from treadle.autodiff.finite import usable, was_dropped
from treadle.base.dtype import DType, as_dtype, float32, float64
from treadle.base.errors import ShapeError
from treadle.base.loc import user_location
from treadle.base.log import get_logger
from treadle.base.modes import capturing
from treadle.base.spelling import Constructed
from treadle.engine.eager.dispatch import eager_type
from treadle.tensor import Parameter, Tensor, scalar_tensor

Group: TypeAlias = "dict[str, Any]"
Params: TypeAlias = "Parameter | Group | Iterable[Parameter] | Iterable[Group]"
O = TypeVar("O", bound="Optimizer")  # noqa: E741


_READ_AT_EACH_CALL = ("lr", "weight_decay", "lr_decay")
"""Hyper-parameters that updates take as operands: changing them recompiles nothing."""


class Required:
    """Stands in `defaults` for a value that every parameter group must bring."""

    def __repr__(self) -> str:
        return "required"


required = Required()


class Optimizer(metaclass=Constructed):
    """Base of all optimizers; a subclass defines `_create_state` and `_updates`.

    Args:
        params: parameters, or dicts with the key "params" and hyper-parameters of their own.
        defaults: hyper-parameters of groups that do not bring their own.

    Attributes:
        param_groups: dicts of "params" and hyper-parameters. Hyper-parameters are read at every
            step, so changing `param_groups[0]["lr"]` takes effect at the next one.

    Raises:
        TypeError: something to be optimized is not a `Parameter`.
        ValueError: there is nothing to optimize, or a required hyper-parameter is missing.
        AssertionError: a parameter appears twice.
    """

    _saw_gradient = False
    _saw_old_gradient = False
    """Set by the first step, which looks for gradients."""

    def __init__(self, params: Params, defaults: Mapping[str, Any]) -> None:
        self._state: dict[Parameter, dict[str, Tensor]] = {}
        self._defaults = dict(defaults)
        self.param_groups: list[Group] = []
        groups = _groups(params)
        if not groups:
            raise ValueError(f"{type(self).__name__} got an empty parameter list")
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Optimize more parameters from now on, with hyper-parameters of their own.

        `param_group` is a dict with "params" (a `Parameter` or several); hyper-parameters that
        it leaves out come from the optimizer's defaults. Raises as the constructor does.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        given = param_group["params"]
        params = [given] if isinstance(given, Tensor) else list(given)
        self._check_params(params)
        group = {**self._defaults, **param_group, "params": params}
        for name, value in group.items():
            if isinstance(value, Required):
                raise ValueError(f"{type(self).__name__}: a parameter group must specify {name!r}")
        self.param_groups.append(group)
        self._create_state(group)

    def _check_params(self, params: list[Any]) -> None:
        taken = {id(p) for group in self.param_groups for p in group["params"]}
        for param in params:
            if not isinstance(param, Parameter):
                raise TypeError(
                    "optimizer can only optimize Parameters, but one of the params is "
                    f"{type(param).__name__}; make it a treadle.Parameter"
                )
            if id(param) in taken:
                raise AssertionError(
                    f"{type(self).__name__}: a parameter of shape {param.shape} appears twice"
                )
            taken.add(id(param))

    # -- what a subclass defines and uses --------------------------------------------------

    @abc.abstractmethod
    def _create_state(self, param_group: Group) -> None:
        """Add the state of a new group's parameters, with `_add_state`."""

    @abc.abstractmethod
    def _updates(self, param_group: Group) -> None:
        """Rebind a group's parameters and state to their next values; nothing is recorded."""

    def _add_state(
        self, param: Parameter, state_name: str, initializer: Any = None, dtype: Any = None
    ) -> None:
        """Give a parameter a state tensor: zeros of its shape unless `initializer` says more.

        Args:
            param: whose state it is.
            state_name: its name in `state_dict`.
            initializer: an array, a tensor or a number.
            dtype: element type; float32 for floats where it and the initializer name none, so that
                state of 16-bit parameters is wider than they are.
        """
        wide = _state_dtype(param)
        if initializer is None:
            array, given = np.zeros(param.shape, wide.numpy), wide
        else:
            array = np.asarray(initializer)
            plain = not isinstance(initializer, (np.ndarray, Tensor))
            given = wide if plain and array.dtype.kind == "f" else as_dtype(array.dtype)
        kind = given if dtype is None else as_dtype(dtype)
        made = Tensor(array.astype(kind.numpy), dtype=kind, device=param.device)
        self._state.setdefault(param, {})[state_name] = made

    def _scalar(self, group: Group, name: str, param: Parameter) -> Tensor:
        """A hyper-parameter as an operand of an update; a compiled step reads it at each call."""
        mine = param._kind
        wide = _state_dtype(param)
        kind = mine if mine.dtype is wide else eager_type(wide, mine.device)
        capture = capturing()
        if capture is not None:
            held: Tensor = capture.host_value((id(group), name), lambda: group[name], kind)
            return held
        return scalar_tensor(float(group[name]), kind)

    # -- the loop --------------------------------------------------------------------------

    def step(self: O) -> O:
        """Update every parameter that has a gradient; returns the optimizer.

        The update itself is never recorded for differentiation.
        """
        if not self._saw_gradient:
            self._look_for_gradients()
        if not self._saw_old_gradient:
            self._look_for_old_gradients()
        with no_grad():
            for group in self.param_groups:
                self._announce(group)
                before = self._kept_where_unusable(group)
                self._updates(group)
                for flag, handle, old in before:
                    handle._reset(F.where(flag, handle, old))
        return self

    def _look_for_gradients(self) -> None:
        """Warn once if no parameter has a gradient at the first step."""
        self._saw_gradient = True
        params = [param for group in self.param_groups for param in group["params"]]
        if any(param.grad is not None or was_dropped(param) for param in params):
            return  # A scaler drops gradients that are not finite, and that step does nothing.
        if params:
            get_logger().warning(
                "%s.step changes nothing: none of its %d parameters has a gradient (the first is "
                "%s); attach them to a GradManager and call gm.backward(loss) before. At %s",
                type(self).__name__, len(params), params[0].type, user_location(),
            )  # fmt: skip

    def _look_for_old_gradients(self) -> None:
        """Warn once if a gradient contains one that was stepped by already.

        One parameter speaks for all. Sums of several `backward` calls before a step are as wanted,
        and so is what others add before `clear_grad`.
        """
        groups = iter(self.param_groups)
        grad = next(
            (p.grad for group in groups for p in group["params"] if p.grad is not None), None
        )
        if grad is None:
            return
        if grad.__dict__.get("_stepped") == "again":
            self._saw_old_gradient = True
            get_logger().warning(
                "%s.step uses gradients of an earlier step again: backward adds to those that are "
                "there. Call opt.step().clear_grad(). At %s", type(self).__name__, user_location(),
            )  # fmt: skip
        grad.__dict__.setdefault("_stepped", "once")

    def _kept_where_unusable(self, group: Group) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the values to keep unless a flag is true: (flag, handle, present value)."""
        found = []
        for param in group["params"]:
            flag = usable(param.grad)
            if flag is not None:
                handles = (param, *self._state.get(param, {}).values())
                found += [(flag, handle, handle.detach()) for handle in handles]
        return found

    def _announce(self, group: Group) -> None:
        """Tell a capture what an update depends on besides tensors."""
        capture = capturing()
        if capture is None:
            return
        fixed = [n for n in group if n not in ("params", *_READ_AT_EACH_CALL)]
        capture.guard(lambda: [group.get(n) for n in fixed], [group[n] for n in fixed])

    def clear_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None

    def zero_grad(self) -> None:
        """The deprecated name of `clear_grad`."""
        warnings.warn("use clear_grad()", DeprecationWarning, stacklevel=2)
        self.clear_grad()

    def backward(self, loss: Any) -> None:
        """Raise NotImplementedError: gradients come from `GradManager`."""
        raise NotImplementedError("use autodiff.GradManager().backward(loss)")

    def bcast_param(self) -> None:
        """Raise NotImplementedError: `distributed.bcast_list_` takes its place."""
        raise NotImplementedError("use distributed.bcast_list_(module.parameters())")

    # -- saving ----------------------------------------------------------------------------

    def state_dict(self, keep_var: bool = False) -> dict[str, Any]:
        """Everything that a resumed run needs to continue bit for bit.

        Returns:
            `param_groups`: the groups, with running indices in place of parameters; `state`: for
            each index the state as NumPy arrays, or as tensors with `keep_var`.
        """
        index: dict[Parameter, int] = {}
        for group in self.param_groups:
            for param in group["params"]:
                index[param] = len(index)
        groups = [
            {**group, "params": [index[p] for p in group["params"]]} for group in self.param_groups
        ]
        state = {
            index[param]: {k: t if keep_var else t.numpy() for k, t in held.items()}
            for param, held in self._state.items()
        }
        return {"param_groups": groups, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over hyper-parameters and state from `state_dict()` of an equal optimizer.

        Raises:
            ValueError: the number of groups or of their parameters differs, or a
                hyper-parameter or a parameter's state is missing.
            ShapeError: a state tensor has another shape.
        """
        saved_groups = state["param_groups"]
        if len(self.param_groups) != len(saved_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        loaded: list[tuple[Parameter, Mapping[str, Any]]] = []
        for group, saved in zip(self.param_groups, saved_groups, strict=True):
            self._check_group(group, saved)
            for param, key in zip(group["params"], saved["params"], strict=True):
                loaded.append((param, self._check_state(param, state["state"].get(key, {}))))
        for group, saved in zip(self.param_groups, saved_groups, strict=True):
            group.update({name: v for name, v in saved.items() if name != "params"})
        with no_grad():
            for param, values in loaded:
                for name, held in self._state.get(param, {}).items():
                    held._reset(_as_tensor(values[name], param))

    def _check_group(self, group: Group, saved: Mapping[str, Any]) -> None:
        if len(group["params"]) != len(saved["params"]):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                f"optimizer's group: {len(saved['params'])} against {len(group['params'])}"
            )
        missing = sorted(self._defaults.keys() - saved.keys())
        if missing:
            raise ValueError(f"loaded state dict has a parameter group without {missing}")

    def _check_state(self, param: Parameter, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        held = self._state.get(param, {})
        if held.keys() != saved.keys():
            raise ValueError(
                f"loaded state dict has state {sorted(saved)} for a parameter of shape "
                f"{param.shape}, expected {sorted(held)}"
            )
        for name, tensor in held.items():
            if tensor.shape != saved[name].shape:
                raise ShapeError(
                    "load_state_dict",
                    f"state `{name}` shape mismatch",
                    saw=f"expected {tensor.shape}, got {saved[name].shape}",
                )
        return saved


def _groups(params: Any) -> list[Any]:
    """Return the user's parameters as a list of group dicts."""
    if isinstance(params, dict):
        return [params]
    if isinstance(params, Tensor):
        return [{"params": [params]}]
    if not isinstance(params, Iterable):
        raise TypeError(
            "params argument given to the optimizer should be Parameter or iterable of "
            f"Parameters or dict, got {type(params).__name__}"
            + ("; pass net.parameters()" if hasattr(params, "parameters") else "")
            + (
                "; call it: net.parameters()"
                if callable(params) and hasattr(params, "__self__")
                else ""
            )
        )
    several = list(params)
    if any(isinstance(p, dict) for p in several):
        return several
    return [{"params": several}] if several else []


def _state_dtype(param: Parameter) -> DType:
    return float64 if param._kind.dtype is float64 else float32


def _as_tensor(value: Any, param: Parameter) -> Tensor:
    array = value.numpy() if isinstance(value, Tensor) else value
    return Tensor(array, dtype=array.dtype, device=param.device)
