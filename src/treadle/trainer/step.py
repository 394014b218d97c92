"""The functions that a trainer compiles: one update, one evaluation, one prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treadle import jit
from treadle.amp import GradScaler, autocast
from treadle.autodiff import GradManager
from treadle.module import Module
from treadle.optimizer import Optimizer, clip_grad_norm, clip_grad_value
from treadle.tensor import Tensor

Loss = Callable[[Any, Any], Tensor]
Fields = tuple[tuple[Any, ...], Any]
"""Inputs of the model, and the target."""

PRECISIONS = {
    "float32": "float32",
    "32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "bf16-mixed": "bfloat16",
    "float16": "float16",
    "16-mixed": "float16",
}
_INITIAL_SCALE = 2.0**16


class BatchSteps:
    """Treatment of batches of Tensors, compiled or op by op.

    Args:
        model: the model.
        optimizer: of its parameters; None for a model that is only used.
        loss: function of output and target; None likewise.
        precision: a value of `PRECISIONS`.
        clip_norm: largest joint norm of the gradients.
        clip_value: largest absolute value of a gradient's element.
        compile: whether to compile.
        outputs: whether updates return the model's outputs, too.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | None,
        loss: Loss | None,
        precision: str,
        clip_norm: float | None,
        clip_value: float | None,
        compile: bool,
        outputs: bool = False,
    ) -> None:
        self._gives_outputs = outputs
        self._model = model
        self._optimizer = optimizer
        self._loss = loss
        self._precision = precision
        self._clip_norm = clip_norm
        self._clip_value = clip_value
        groups = [] if optimizer is None else optimizer.param_groups
        self._parameters = [param for group in groups for param in group["params"]]
        self._manager = GradManager().attach(self._parameters)
        self.scaler = GradScaler(_INITIAL_SCALE) if precision == "float16" else None
        wrap = jit.compile if compile else _as_it_is
        self.update = wrap(self._update)
        self.evaluate = wrap(self._evaluate)
        self.predict = wrap(self._predict)

    def _update(self, *batches: Fields) -> tuple[Tensor, list[Any]]:
        """One update from the mean of the losses of some batches, which it returns.

        The outputs of the batches come with it if they are wanted, as they were before the update.
        """
        total: Tensor | None = None
        outputs: list[Any] = []
        for inputs, target in batches:
            with self._manager:
                output = self._output(inputs)
                loss = self._loss_of(output, target) / len(batches)
                self._backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
            if self._gives_outputs:
                outputs.append(output)
        self._finish()
        if total is None:
            raise ValueError("an update needs at least one batch")
        return total, outputs

    def _backward(self, loss: Tensor) -> None:
        if self.scaler is None:
            self._manager.backward(loss)
        else:
            self.scaler.backward(self._manager, loss, unscale_grad=False)

    def _finish(self) -> None:
        if self._optimizer is None:
            raise ValueError("an update needs an optimizer")
        if self.scaler is not None:
            self.scaler.unscale(self._parameters)
        if self._clip_norm is not None:
            clip_grad_norm(self._parameters, self._clip_norm)
        if self._clip_value is not None:
            clip_grad_value(self._parameters, -self._clip_value, self._clip_value)
        self._optimizer.step().clear_grad()
        if self.scaler is not None:
            self.scaler.update()

    def _evaluate(self, inputs: tuple[Any, ...], target: Any) -> tuple[Any, Tensor]:
        """The output, and its loss."""
        output = self._output(inputs)
        return output, self._loss_of(output, target)

    def _predict(self, inputs: tuple[Any, ...]) -> Any:
        return self._output(inputs)

    def _output(self, inputs: Sequence[Any]) -> Any:
        with autocast(self._precision != "float32", _low(self._precision)):
            return self._model(*inputs)

    def _loss_of(self, output: Any, target: Any) -> Tensor:
        if self._loss is None:
            raise ValueError("this needs a loss: Trainer(model, optimizer, loss)")
        with autocast(self._precision != "float32", _low(self._precision)):
            return self._loss(output, target)


def _low(precision: str) -> str:
    # Not used where autocast is off, but checked.
    return "float16" if precision == "float32" else precision


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
