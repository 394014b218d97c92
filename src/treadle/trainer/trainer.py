"""`Trainer`: loops over epochs and batches, and everything around them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from treadle.autodiff import no_grad
from treadle.base.errors import CheckpointError, NumericError
from treadle.data import DataLoader
from treadle.data.dataset import Dataset, StreamDataset
from treadle.data.preload import to_tensors
from treadle.module import Module
from treadle.optimizer import LRScheduler, Optimizer, ReduceLROnPlateau
from treadle.serialization import load, save
from treadle.tensor import Tensor
from treadle.trainer import randomness
from treadle.trainer.callback import Callback, Logs
from treadle.trainer.means import Means
from treadle.trainer.progress import ProgressBar
from treadle.trainer.signals import Interrupts
from treadle.trainer.step import PRECISIONS, BatchSteps, Fields, Loss

Metric = Callable[[Any, Any], Any]
Batches = DataLoader | Iterable[Any]
PathLike = str | os.PathLike[str]

_FORMAT = "treadle.trainer/1"


class Trainer:
    """Trains a model: batches in, updates, validation, logs and checkpoints out.

    A batch is a sequence of arrays or Tensors: the model's inputs, then the target. A subclass
    may override `fields` for other batches.

    Args:
        model: called with the inputs.
        optimizer: of its parameters; None for a model that is only evaluated.
        loss: function of the model's output and the target to a scalar Tensor.
        metrics: functions of output and target to a number, by name; for `evaluate`, and for the
            validation of `fit`.
        train_metrics: have the metrics of training, too, from the outputs of each update, that is,
            with dropout and the statistics of the batch, and before the parameters change.
        scheduler: stepped after each epoch.
        precision: "float32"; "bfloat16" or "float16" for mixed precision (`treadle.amp`), float16
            with a scaled loss. Also "32", "bf16-mixed", "16-mixed".
        accumulate: batches whose gradients are averaged for one update.
        clip_norm: the gradients' joint norm is made at most that.
        clip_value: each element of a gradient is limited to plus and minus that.
        compile: run each update as one compiled program (`jit.compile`), else op by op.
        seed: `seed_everything` with it when `fit` begins (not when it resumes).
        callbacks: called while `fit` runs: `Checkpoint`, `EarlyStopping`, `CSVLogger`,
            `TensorBoardLogger`, your own.
        progress: show a bar, or a line per epoch, on standard error.

    Raises:
        ValueError: a number is out of range, or there is no such precision.
        TypeError: optimizer, loss or metrics are something else.

    Attributes:
        step: updates done.
        epoch: epochs done.
        batch: batches done of the running epoch.
        history: quantities of each epoch.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | None = None,
        loss: Loss | None = None,
        *,
        metrics: Mapping[str, Metric] | None = None,
        train_metrics: bool = False,
        scheduler: LRScheduler | None = None,
        precision: str = "float32",
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        compile: bool = True,
        seed: int | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision should be one of {list(PRECISIONS)}, got {precision!r}")
        if accumulate < 1:
            raise ValueError(f"accumulate should be positive, got {accumulate}")
        _check(optimizer, loss)
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.metrics = _named(metrics)
        self.accumulate = accumulate
        self.seed = seed
        self.callbacks = [*callbacks, *([ProgressBar()] if progress else [])]
        self.step = self.epoch = self.batch = 0
        self.batches_in_epoch: int | None = None
        self.history: list[Logs] = []
        self.is_interrupted = self._is_stopping = False
        kind, limits = PRECISIONS[precision], (clip_norm, clip_value)
        self._train_metrics = self.metrics if train_metrics else {}
        self._steps = BatchSteps(model, optimizer, loss, kind, *limits, compile, train_metrics)
        self._means = Means()
        self._train: Batches = ()
        self._validation: Batches = ()
        self._place: dict[str, Any] | None = None

    # -- what is done ------------------------------------------------------------------------

    def fit(
        self,
        train: Batches,
        epochs: int,
        validation: Batches | None = None,
        *,
        resume: PathLike | None = None,
        max_steps: int | None = None,
    ) -> list[Logs]:
        """Train until `epochs` epochs are done, counted from the model's first one.

        With a checkpoint of a `Checkpoint` it continues as if it had not been interrupted, in the
        middle of an epoch too: to the same bits, if batches are the same. A `DataLoader` over an
        indexable dataset gives the same batches (random transforms do so without workers and
        `preload`); other iterables are read up to the place again.

        SIGINT (Ctrl-C) and SIGTERM end it after the running step, with a checkpoint if there is a
        `Checkpoint`; a second SIGINT ends it at once.

        Args:
            train: batches of an epoch each time it is iterated.
            epochs: the number of epochs to have done at the end.
            validation: batches to look at after each epoch.
            resume: a checkpoint to continue from, if the file exists.
            max_steps: updates to have done at most.

        Returns:
            `history`: for each epoch the mean "loss" and the last "lr"; with `validation`,
            "val_loss" and "val_" with the name of each metric; with `train_metrics` the names
            of the metrics themselves.

        Raises:
            ValueError: there is no optimizer or loss, or no batch.
            TypeError: a dataset is given in place of a loader.
            NumericError: a loss is not finite.
            KeyboardInterrupt: Ctrl-C was pressed.
            SystemExit: SIGTERM came; its code is 143.
            CheckpointError: the checkpoint is damaged, or of another model.
        """
        _require_batches(train)
        self._train = train
        self._validation = () if validation is None else validation
        self._is_stopping = self.is_interrupted = False
        if not self.model.training:
            self.model.train()
        restored = self._begin(resume)
        self._tell("on_fit_start")
        try:
            with Interrupts() as interrupts:
                while self.epoch < epochs and not self._is_over(max_steps):
                    self._fit_epoch(interrupts, restored, max_steps)
                    restored = None
                    if self.is_interrupted:
                        interrupts.leave()
                    if self.batch == 0:
                        self._end_epoch(validation)
        finally:
            self._tell("on_fit_end")
        return self.history

    def evaluate(self, data: Batches) -> Logs:
        """The mean loss and metrics over all batches, weighted by their numbers of samples.

        The model is in evaluation mode meanwhile.

        Args:
            data: batches with targets.

        Raises:
            ValueError: there is no loss, or no batch.
        """
        means = Means()
        with _Evaluating(self.model), no_grad():
            for batch in data:
                inputs, target = self.fields(to_tensors(batch))
                output, loss = self._steps.evaluate(inputs, target)
                values = {name: float(f(output, target)) for name, f in self.metrics.items()}
                means.add({"loss": float(loss), **values}, _samples(inputs))
        if not means.weight:
            raise ValueError("Trainer.evaluate: there is no batch to look at")
        return means.all()

    def predict(self, data: Batches) -> Any:
        """Outputs of the model for all batches, one after the other, as NumPy arrays.

        The model is in evaluation mode meanwhile.

        Args:
            data: batches like those of `fit`, whose targets are not looked at, or with inputs
                alone.

        Returns:
            One array, or a tuple of them if the model returns several.

        Raises:
            ValueError: there is no batch.
        """
        outputs: list[Any] = []
        with _Evaluating(self.model), no_grad():
            for batch in data:
                tensors = to_tensors(batch)
                is_alone = isinstance(tensors, Tensor) or len(tensors) == 1
                inputs = _listed(tensors) if is_alone else self.fields(tensors)[0]
                outputs.append(_arrays(self._steps.predict(inputs)))
        if not outputs:
            raise ValueError("Trainer.predict: there is no batch")
        if isinstance(outputs[0], tuple):
            return tuple(np.concatenate(column) for column in zip(*outputs, strict=True))
        return np.concatenate(outputs)

    def stop(self) -> None:
        """End `fit` after the running step."""
        self._is_stopping = True

    def fields(self, batch: Any) -> Fields:
        """The model's inputs and the target of a batch of Tensors.

        Raises:
            ValueError: the batch is not a sequence of at least two.
        """
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            raise ValueError(
                "Trainer: a batch should be the inputs and the target, in this order\n"
                "  hint: override Trainer.fields for batches of another form"
            )
        *inputs, target = batch
        return tuple(inputs), target

    # -- checkpoints -------------------------------------------------------------------------

    def save(self, path: PathLike) -> None:
        """Write everything that a run needs to continue: one file, whole or not at all."""
        scaler = self._steps.scaler
        content = {
            "format": _FORMAT,
            "model": self.model.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": randomness.state(),
            "loader": self._place,
            "validation": _state_of(self._validation),
            "position": [self.step, self.epoch, self.batch],
            "means": self._means.state(),
            "history": self.history,
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }
        save(content, os.fspath(path))

    def load(self, path: PathLike) -> dict[str, Any]:
        """Take over model, optimizer, scheduler, counters and callbacks from a file of `save`.

        Returns:
            The file's content, for what is not taken over: the states of generators and loader.

        Raises:
            CheckpointError: the file is damaged, or of something else.
        """
        name = os.fspath(path)
        content = load(name)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise CheckpointError(name, "this is not a checkpoint of a trainer")
        saved, mine = content["callbacks"], self.callbacks
        _require_as_many(name, len(saved), len(mine))
        self.model.load_state_dict(content["model"])
        parts = {
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self._steps.scaler,
        }
        for key, part in parts.items():
            if part is not None and content[key] is not None:
                part.load_state_dict(content[key])
        for callback, state in zip(mine, saved, strict=True):
            callback.load_state_dict(state)
        self.step, self.epoch, self.batch = content["position"]
        self.history = list(content["history"])
        self._means = Means.of(content["means"])
        return content

    # -- the loop ----------------------------------------------------------------------------

    def _begin(self, resume: PathLike | None) -> Mapping[str, Any] | None:
        """Seed, or load; returns the state of the generators to return to."""
        if resume is not None and os.path.exists(resume):
            content = self.load(resume)
            if isinstance(self._train, DataLoader) and content["loader"] is not None:
                self._train.load_state_dict(content["loader"])
                self._place = content["loader"]
            if isinstance(self._validation, DataLoader) and content["validation"] is not None:
                self._validation.load_state_dict(content["validation"])
            random: Mapping[str, Any] = content["random"]
            return random
        # An epoch that was left early is over.
        self.batch, self._means = 0, Means()
        if self.seed is not None and self.step == 0:
            randomness.seed_everything(self.seed)
        return None

    def _fit_epoch(
        self,
        interrupts: Interrupts,
        restored: Mapping[str, Any] | None,
        max_steps: int | None,
    ) -> None:
        """The rest of an epoch; ended early, it leaves `batch` where it is."""
        batches = self._batches()
        if restored is not None:
            # Last, since starting an epoch may draw a seed for workers.
            randomness.restore(restored)
        self._tell("on_epoch_start")
        group: list[Any] = []
        for batch in batches:
            group.append(batch)
            # Before the next batch is asked for: that may already be of another epoch.
            self._place = _state_of(self._train)
            is_last = self.batch + len(group) == self.batches_in_epoch
            if len(group) < self.accumulate and not is_last:
                continue
            self._run(group, interrupts)
            group = []
            if not is_last and (self.is_interrupted or self._is_over(max_steps)):
                return
        if group:
            self._run(group, interrupts)
        if not self._means.weight:
            raise ValueError("Trainer.fit: there is no batch to learn from")
        self.batch = 0
        self._place = _state_of(self._train)

    def _run(self, group: list[Any], interrupts: Interrupts) -> None:
        """An update, and what follows from it."""
        logs = self._update(group)
        self.is_interrupted = interrupts.wanted
        self._tell("on_step_end", logs)

    def _batches(self) -> Iterator[Any]:
        """Batches from where the epoch stands."""
        try:
            self.batches_in_epoch = len(self._train)  # type: ignore[arg-type]
        except TypeError:
            self.batches_in_epoch = None
        batches = iter(self._train)
        # A loader winds itself forward.
        winds_itself = _state_of(self._train) is not None
        return batches if winds_itself else islice(batches, self.batch, None)

    def _update(self, group: list[Any]) -> Logs:
        fields = [self.fields(to_tensors(batch)) for batch in group]
        if self.optimizer is None:
            raise ValueError("Trainer.fit: there is no optimizer")
        rate = float(self.optimizer.param_groups[0]["lr"])
        total, outputs = self._steps.update(*fields)
        self.step += 1
        self.batch += len(group)
        _require_finite(loss := float(total), self.step)
        logs = {**_measured(self._train_metrics, fields, outputs), "loss": loss, "lr": rate}
        self._means.add(logs, sum(_samples(inputs) for inputs, _ in fields))
        return logs

    def _end_epoch(self, validation: Batches | None) -> None:
        logs = {**self._means.all(), "lr": self._means.last["lr"]}
        self._means = Means()
        self.epoch += 1
        if validation is not None:
            found = self.evaluate(validation)
            logs |= {f"val_{name}": value for name, value in found.items()}
        _advance(self.scheduler, logs)
        self.history.append(logs)
        self._tell("on_epoch_end", logs)

    def _is_over(self, max_steps: int | None) -> bool:
        return self._is_stopping or (max_steps is not None and self.step >= max_steps)

    def _tell(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)


def _measured(
    metrics: Mapping[str, Metric], fields: Sequence[Fields], outputs: Sequence[Any]
) -> Logs:
    """Metrics over the batches of an update, weighted by their numbers of samples."""
    means = Means()
    if metrics:
        with no_grad():
            for (inputs, target), output in zip(fields, outputs, strict=True):
                values = {name: float(f(output, target)) for name, f in metrics.items()}
                means.add(values, _samples(inputs))
    return means.all()


class _Evaluating:
    """The model in evaluation mode, and then every part of it as it was."""

    def __init__(self, model: Module) -> None:
        self._model = model
        self._modes = [(part, part.training) for part in model.modules()]

    def __enter__(self) -> None:
        self._model.eval()

    def __exit__(self, *_: object) -> None:
        for part, mode in self._modes:
            part.training = mode


def _require_as_many(name: str, saved: int, mine: int) -> None:
    if saved != mine:
        raise CheckpointError(
            name,
            "the checkpoint is of a trainer with other callbacks",
            saw=f"{saved} there, {mine} here",
            hint="make the trainer as it was when the checkpoint was written",
        )


def _require_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise NumericError(
            "Trainer.fit",
            f"the loss of step {step} is {loss}",
            hint="lower the learning rate, or set clip_norm; to find the op, run with "
            "compile=False in treadle.autodiff.detect_anomaly()",
        )


def _state_of(data: Batches) -> dict[str, Any] | None:
    """Return the position of a loader; None for other iterables, and for streams, which
    cannot say.
    """
    is_indexable = isinstance(data, DataLoader) and not isinstance(data.dataset, StreamDataset)
    return data.state_dict() if isinstance(data, DataLoader) and is_indexable else None


def _samples(inputs: Sequence[Any]) -> int:
    first = inputs[0]
    return int(first.shape[0]) if isinstance(first, Tensor) and first.ndim else 1


def _listed(batch: Any) -> tuple[Any, ...]:
    return (batch,) if isinstance(batch, Tensor) else tuple(batch)


def _arrays(output: Any) -> Any:
    if isinstance(output, list | tuple):
        return tuple(_arrays(part) for part in output)
    # As the host's arrays: bfloat16 has none of its own in NumPy's files.
    return output.astype("float32").numpy() if output.dtype.name == "bfloat16" else output.numpy()


def _advance(scheduler: LRScheduler | None, logs: Logs) -> None:
    """A scheduler's step after an epoch."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(logs.get("val_loss", logs["loss"]))
    elif scheduler is not None:
        scheduler.step()


def _check(optimizer: object, loss: object) -> None:
    """Names in the place of objects, as other trainers take them, are a `TypeError`."""
    wrong = "Trainer: {0} should be {1}, got {2}; as in Trainer(net, treadle.optimizer.Adam("
    wrong += "net.parameters(), 1e-3), F.loss.cross_entropy)"
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise TypeError(wrong.format("optimizer", "an Optimizer", type(optimizer).__name__))
    if loss is not None and not callable(loss):
        raise TypeError(wrong.format("loss", "a function", type(loss).__name__))


def _require_batches(given: object) -> None:
    if isinstance(given, Dataset):
        raise TypeError(
            f"Trainer.fit takes batches, got the samples of {type(given).__name__}; pass "
            "DataLoader(dataset, RandomSampler(dataset, batch_size=32))"
        )


def _named(metrics: Any) -> dict[str, Metric]:
    """Metrics by name; whatever else is a `TypeError`."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        raise TypeError(
            "Trainer: metrics should be functions of output and target by name, got "
            f"{metrics!r}; as in metrics={{'accuracy': F.topk_accuracy}}"
        )
    return dict(metrics)
