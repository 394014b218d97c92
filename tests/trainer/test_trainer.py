"""Trainer: its updates are those of a loop by hand, and a run that is cut is the same run."""

import csv
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.trainer import sample_runs as runs

import treadle as mge
import treadle.functional as F
import treadle.module as M
from treadle.autodiff import GradManager
from treadle.base.errors import CheckpointError, NumericError
from treadle.data import DataLoader, SequentialSampler
from treadle.data.dataset import ArrayDataset
from treadle.optimizer import SGD, Adam, ReduceLROnPlateau, clip_grad_norm
from treadle.trainer import (
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    ProgressBar,
    TensorBoardLogger,
    Trainer,
    seed_everything,
)

ROOT = Path(__file__).parents[2]


def equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def by_hand(epochs: int, accumulate: int = 1, clip: float | None = None) -> M.Module:
    """The loop that `fit` stands for."""
    net = runs.network(0.0)
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    manager = GradManager().attach(net.parameters())
    for _ in range(epochs):
        batches = list(batches_of(net))
        for start in range(0, len(batches), accumulate):
            group = batches[start : start + accumulate]
            for x, y in group:
                with manager:
                    loss = F.loss.cross_entropy(net(mge.tensor(x)), mge.tensor(y)) / len(group)
                    manager.backward(loss)
            if clip is not None:
                clip_grad_norm(list(net.parameters()), clip)
            optimizer.step().clear_grad()
    return net


def batches_of(net: M.Module) -> DataLoader:
    data = ArrayDataset(*runs.points())
    return DataLoader(data, SequentialSampler(data, 8))


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (4, 0.05)])
def test_updates_are_those_of_a_loop_by_hand(
    compile: bool, accumulate: int, clip: float | None
) -> None:
    net = runs.network(0.0)
    trainer = Trainer(
        net,
        SGD(net.parameters(), lr=0.1, momentum=0.9),
        F.loss.cross_entropy,
        accumulate=accumulate,
        clip_norm=clip,
        compile=compile,
        progress=False,
    )
    history = trainer.fit(batches_of(net), 3)
    expected = by_hand(3, accumulate, clip)
    for mine, wanted in zip(net.parameters(), expected.parameters(), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-6)
    assert trainer.step == 3 * -(-6 // accumulate) and trainer.epoch == 3
    assert history[-1]["loss"] < history[0]["loss"] and history[0]["lr"] == pytest.approx(0.1)


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "bf16-mixed"])
@pytest.mark.parametrize("compile", [False, True])
def test_precision_by_one_argument(precision: str, compile: bool) -> None:
    net = runs.network(0.0)
    optimizer = Adam(net.parameters(), lr=0.02)
    trainer = Trainer(
        net,
        optimizer,
        F.loss.cross_entropy,
        precision=precision,
        clip_norm=1.0,
        compile=compile,
        progress=False,
    )
    history = trainer.fit(runs.loader(), 8)
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]
    assert all(p.dtype == "float32" for p in net.parameters())


@pytest.mark.parametrize("compile", [False, True])
def test_an_overflow_in_float16_skips_the_update(compile: bool) -> None:
    net = M.Linear(2, 2)
    before = net.weight.numpy().copy()
    trainer = Trainer(
        net,
        SGD(net.parameters(), lr=0.1),
        lambda output, target: F.mean(output * target),
        precision="float16",
        clip_norm=1.0,
        compile=compile,
        progress=False,
    )
    batch = [np.ones((1, 2), "float32"), np.full((1, 2), 3e4, "float32")]
    trainer.fit([batch], 1)
    np.testing.assert_array_equal(net.weight.numpy(), before)
    trainer.fit([[batch[0], batch[0]]], 40)
    assert (net.weight.numpy() != before).all() and np.isfinite(net.weight.numpy()).all()


def test_validation_metrics_schedule_and_history() -> None:
    run = runs.trainer()
    history = run.fit(runs.loader(), 4, runs.loader())
    assert [sorted(logs) for logs in history] == [["loss", "lr", "val_accuracy", "val_loss"]] * 4
    assert [logs["lr"] for logs in history] == pytest.approx([0.01, 0.01, 0.005, 0.005])
    assert history == run.history and run.model.training
    found = run.evaluate(runs.loader())
    x, y = runs.points()
    run.model.eval()
    output = run.model(mge.tensor(x))
    assert found["accuracy"] == pytest.approx(runs.accuracy(output, mge.tensor(y)))
    assert found["loss"] == pytest.approx(float(F.loss.cross_entropy(output, mge.tensor(y))))


@pytest.mark.parametrize("compile", [True, False])
def test_metrics_of_training(compile: bool) -> None:
    x, y = runs.points()
    batches = [[x[:30], y[:30]], [x[30:], y[30:]]]
    seen: list[tuple[int, float]] = []

    def counted(output: mge.Tensor, target: mge.Tensor) -> float:
        seen.append((len(target), runs.accuracy(output, target)))
        return seen[-1][1]

    run = runs.trainer(
        metrics={"accuracy": counted}, train_metrics=True, accumulate=2, compile=compile, seed=None
    )
    (logs,) = run.fit(batches, 1)
    assert sorted(logs) == ["accuracy", "loss", "lr"] and [n for n, _ in seen] == [30, 14]
    assert logs["accuracy"] == pytest.approx(sum(n * found for n, found in seen) / 44)
    without = runs.trainer(accumulate=2, compile=compile, seed=None)
    assert without.fit(batches, 1)[0]["loss"] == pytest.approx(logs["loss"], rel=1e-5)


@pytest.mark.parametrize("form", [list, tuple])
def test_metrics_get_tensors(form: type) -> None:
    kinds: list[type] = []

    def counted(output: mge.Tensor, target: mge.Tensor) -> mge.Tensor:
        kinds.extend((type(output), type(target)))
        return F.mean(F.argmax(output, 1) == target)

    batches = [form(runs.points())]
    run = runs.trainer(metrics={"accuracy": counted}, train_metrics=True)
    (logs,) = run.fit(batches, 1, batches)
    assert {"accuracy", "val_accuracy"} <= logs.keys() and set(kinds) == {mge.Tensor}


@pytest.mark.parametrize("validated", [True, False])
def test_schedulers_of_plateaus_get_the_loss(validated: bool) -> None:
    net = runs.network(0.0)
    optimizer = SGD(net.parameters(), lr=1e-9)
    scheduler = ReduceLROnPlateau(optimizer)
    trainer = Trainer(net, optimizer, F.loss.cross_entropy, scheduler=scheduler)
    history = trainer.fit(runs.loader(), 2, runs.loader(batch_size=5) if validated else None)
    losses = [epoch["val_loss" if validated else "loss"] for epoch in history]
    assert scheduler.current_epoch == 2 and scheduler.best in losses


def test_parts_keep_their_modes() -> None:
    run = runs.trainer()
    frozen = run.model[1]
    frozen.eval()
    mean = frozen.running_mean.numpy().copy()
    run.fit(runs.loader(), 1, runs.loader())
    assert not frozen.training and run.model[3].training
    np.testing.assert_array_equal(frozen.running_mean.numpy(), mean)


@pytest.mark.parametrize("compile", [False, True])
def test_predict(compile: bool) -> None:
    run = runs.trainer(compile=compile)
    x, y = runs.points()
    data = ArrayDataset(x, y)
    predicted = run.predict(DataLoader(data, SequentialSampler(data, 10)))
    run.model.eval()
    np.testing.assert_allclose(predicted, run.model(mge.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)
    alone = run.predict([[x[:3]], x[3:5]])
    np.testing.assert_allclose(alone, predicted[:5], rtol=1e-5, atol=1e-6)


def test_outputs_of_several_parts() -> None:
    class Two(M.Module):
        def forward(self, x: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
            return x, x * 2

    first, second = Trainer(Two(), progress=False).predict([[np.ones((2, 3))], [np.ones((1, 3))]])
    assert first.shape == (3, 3) and (second == 2).all()


# ── checkpoints ────────────────────────────────────────────────────────────────────────────────


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Trainer, logs: dict[str, float]) -> None:
        if trainer.step == self.step:
            trainer.stop()


@pytest.mark.parametrize(
    ("stop", "accumulate", "compile"),
    [(2, 1, False), (6, 1, False), (9, 1, True), (3, 4, True), (6, 4, False)],
)
def test_a_run_that_is_cut_ends_at_the_same_bits(
    stop: int, accumulate: int, compile: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"accumulate": accumulate, "compile": compile}
    whole = runs.trainer(**options, callbacks=[Callback(), Callback()])
    whole.fit(runs.loader(transform=runs.Jitter()), 5, runs.loader())
    path = tmp_path / "run.ckpt"
    saver = Checkpoint(path, every_steps=1)
    first = runs.trainer(**options, callbacks=[saver, StopAt(stop)])
    first.fit(runs.loader(transform=runs.Jitter()), 5, runs.loader())
    assert first.step == stop
    np.random.seed(77)
    second = runs.trainer(**options, callbacks=[Checkpoint(path), Callback()])
    history = second.fit(runs.loader(transform=runs.Jitter()), 5, runs.loader(), resume=path)
    assert equal(runs.state_of(whole), runs.state_of(second))
    assert history == whole.history and second.step == whole.step


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    runs.main(str(folder), "0", "0")
    return folder


@pytest.mark.parametrize(("number", "step"), [(signal.SIGKILL, 10), (signal.SIGINT, 9)])
def test_a_process_that_is_ended_and_resumed(
    number: int, step: int, unbroken: Path, tmp_path: Path
) -> None:
    arguments = [str(tmp_path), str(int(number)), str(step)]
    command = [sys.executable, "-m", "tests.trainer.sample_runs", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    # A shell sees 130 for a program that Ctrl-C has ended.
    assert done.returncode == -number, done.stderr
    assert not (tmp_path / "end.npz").exists()
    runs.main(str(tmp_path), "0", "0")
    assert equal(dict(np.load(unbroken / "end.npz")), dict(np.load(tmp_path / "end.npz")))
    assert (tmp_path / "log.csv").read_text() == (unbroken / "log.csv").read_text()


def test_signals_leave_as_they_came_and_keep_a_checkpoint(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    path = tmp_path / "run.ckpt"
    run = runs.trainer(callbacks=[runs.At(3, signal.SIGINT), Checkpoint(path)])
    with pytest.raises(KeyboardInterrupt):
        run.fit(runs.loader(), 3)
    # The signal came while step 3 was being told of; it ends the one after it.
    assert run.step in (3, 4) and path.exists()
    run = runs.trainer(callbacks=[runs.At(3, signal.SIGTERM), Checkpoint(path)])
    with pytest.raises(SystemExit) as caught:
        run.fit(runs.loader(), 3)
    assert caught.value.code == 143
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_best_state_is_kept(tmp_path: Path) -> None:
    saver = Checkpoint(tmp_path / "run.ckpt", monitor="val_loss")
    run = runs.trainer(callbacks=[saver])
    history = run.fit(runs.loader(), 4, runs.loader())
    best = min(range(4), key=lambda epoch: history[epoch]["val_loss"])
    again = runs.trainer(callbacks=[saver])
    again.load(saver.best_path)
    assert again.epoch == best + 1
    # Another order of the samples, another order of the sum.
    assert again.evaluate(runs.loader())["loss"] == pytest.approx(history[best]["val_loss"])
    with pytest.raises(KeyError, match="no 'gone' to look at"):
        runs.trainer(callbacks=[Checkpoint(tmp_path / "x", monitor="gone")]).fit(runs.loader(), 1)


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    run = runs.trainer()
    run.save(tmp_path / "run.ckpt")
    mge.save({"a": 1}, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="not a checkpoint of a trainer"):
        run.load(tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="other callbacks"):
        runs.trainer(callbacks=[Callback()]).load(tmp_path / "run.ckpt")
    data = (tmp_path / "run.ckpt").read_bytes()
    (tmp_path / "run.ckpt").write_bytes(data[:-50])
    with pytest.raises(CheckpointError):
        runs.trainer().fit(runs.loader(), 1, resume=tmp_path / "run.ckpt")


# ── around the loop ────────────────────────────────────────────────────────────────────────────


def test_early_stopping() -> None:
    run = runs.trainer(callbacks=[EarlyStopping("loss", patience=1, mode="max")])
    assert len(run.fit(runs.loader(), 9)) == 3
    run = runs.trainer(callbacks=[EarlyStopping("loss", patience=0, min_delta=100)])
    assert len(run.fit(runs.loader(), 9)) == 2


def test_steps_are_limited_and_epochs_are_counted_from_the_first() -> None:
    run = runs.trainer()
    run.fit(runs.loader(), 9, max_steps=8)
    assert (run.step, run.epoch, run.batch) == (8, 1, 2)
    run.fit(runs.loader(), 2)
    assert (run.step, run.epoch, run.batch) == (14, 2, 0)
    run.fit(runs.loader(), 9, max_steps=20)
    assert (run.step, run.epoch, run.batch) == (20, 3, 0)
    run.fit(runs.loader(), 3)
    assert run.step == 20


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "run.csv"
    runs.trainer(callbacks=[CSVLogger(path, every_steps=3)]).fit(runs.loader(), 2, runs.loader())
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows if row["name"] == "loss"] == ["3", "6", "9", "12"]
    names = {row["name"] for row in rows}
    assert {"epoch_loss", "val_loss", "val_accuracy", "lr"} <= names
    assert all(np.isfinite(float(row["value"])) for row in rows)


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="an optional package writes the events")
    runs.trainer(callbacks=[TensorBoardLogger(tmp_path)]).fit(runs.loader(), 1)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    assert b"epoch_loss" in content and content.count(b"loss") >= 7


def test_a_line_per_epoch_without_a_terminal_and_a_bar_with_one() -> None:
    for is_terminal in (False, True):
        said = io.StringIO()
        console = Console(file=said, force_terminal=is_terminal, width=120)
        runs.trainer(callbacks=[ProgressBar(console)]).fit(runs.loader(), 2)
        text = said.getvalue()
        assert "epoch 1   loss " in text and "epoch 2   loss " in text
        assert ("it/s" in text) == is_terminal


def test_seeds() -> None:
    draws = []
    for _ in range(2):
        seed_everything(4)
        draws.append((np.random.rand(), mge.random.uniform(size=(2,)).tolist()))
    assert draws[0] == draws[1]
    first, second = (runs.trainer().fit(runs.loader(transform=runs.Jitter()), 1) for _ in range(2))
    assert first == second
    with pytest.raises(ValueError, match="seed"):
        seed_everything(-1)


def test_own_fields_and_plain_iterables() -> None:
    class Named(Trainer):
        def fields(self, batch: Any) -> Any:
            return (batch["x"],), batch["y"]

    net = runs.network()
    run = Named(net, SGD(net.parameters(), lr=0.1), F.loss.cross_entropy, progress=False)
    x, y = runs.points(8)
    run.fit([{"x": x, "y": y}] * 3, 2)
    assert run.step == 6


def test_a_loss_that_is_not_finite_is_reported() -> None:
    net = runs.network()
    bad = Trainer(net, SGD(net.parameters(), lr=0.1), F.loss.cross_entropy, progress=False)
    x, y = runs.points(8)
    with pytest.raises(NumericError, match=r"(?s)loss of step 1 is nan.*detect_anomaly"):
        bad.fit([[x * np.nan, y]], 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "int8"}, "precision should be one of"),
        ({"accumulate": 0}, "accumulate"),
    ],
)
def test_bad_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        runs.trainer(**options)


def test_bad_uses() -> None:
    net = runs.network()
    batch = [*runs.points(8)]
    with pytest.raises(ValueError, match="no optimizer"):
        Trainer(net, progress=False).fit([batch], 1)
    with pytest.raises(ValueError, match="needs a loss"):
        Trainer(net, progress=False, compile=False).evaluate([batch])
    run = runs.trainer()
    with pytest.raises(ValueError, match="no batch to learn from"):
        run.fit([], 1)
    with pytest.raises(ValueError, match="no batch to look at"):
        run.evaluate([])
    with pytest.raises(ValueError, match="there is no batch"):
        run.predict([])
    with pytest.raises(ValueError, match="inputs and the target"):
        run.fit([[batch[0]]], 1)
    for make in (
        lambda: Checkpoint("x", every_steps=0),
        lambda: Checkpoint("x", monitor="loss", mode="best"),
        lambda: EarlyStopping(patience=-1),
        lambda: CSVLogger("x", every_steps=0),
    ):
        with pytest.raises(ValueError):
            make()


def test_it_is_reached_from_the_top() -> None:
    assert mge.Trainer is Trainer
    code = "import treadle, sys; print([m for m in ('cv2', 'rich.progress') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and os.path.exists(ROOT)


def test_workers_too_end_at_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    whole = runs.trainer(callbacks=[Callback(), Callback()])
    whole.fit(runs.loader(num_workers=2), 2)
    first = runs.trainer(callbacks=[Checkpoint(path, every_steps=1), StopAt(4)])
    first.fit(runs.loader(num_workers=2), 2)
    second = runs.trainer(callbacks=[Callback(), Callback()])
    second.fit(runs.loader(num_workers=2), 2, resume=path)
    assert equal(runs.state_of(whole), runs.state_of(second))
