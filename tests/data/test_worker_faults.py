"""What a loader says of workers that raise, die, hang, or meet what cannot be pickled."""

import os
import re
import resource
import signal
import time
from typing import Any

import pytest
from tests.data import sample_datasets as samples
from tests.data.sample_datasets import CountUp, Listing, Numbers, Pids, Trap

from treadle.data import DataLoader, DataLoaderError, SequentialSampler, StreamSampler, pool
from treadle.data.failure import WorkerTraceback, abbreviate, describe_exit, find_unpicklable
from treadle.data.transform import Transform


def loader_with(dataset: Any, **options: Any) -> DataLoader:
    sampler = StreamSampler(2) if isinstance(dataset, CountUp) else SequentialSampler(dataset, 2)
    return DataLoader(dataset, sampler, **{"num_workers": 2, **options})


class Fatal(Transform):
    """Ends the process at a sample."""

    def __init__(self, at: int) -> None:
        self.at = at

    def apply(self, input: Any) -> Any:
        return samples.exit_hard() if input[0] == self.at else input


def doze() -> None:
    time.sleep(0.6)


def limit_files(index: int) -> None:
    """Let this process write no large file, memory files included."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def failure(loader: DataLoader, batches: int, at_least: int | None = None) -> Exception:
    """The exception that ends an epoch after `batches` batches, or after `at_least` already."""
    seen = 0
    try:
        for _ in loader:
            seen += 1
    except Exception as error:
        assert (batches if at_least is None else at_least) <= seen <= batches
        return error
    pytest.fail("the loader did not fail")


def test_an_exception_keeps_its_type_and_shows_both_tracebacks() -> None:
    error = failure(loader_with(Trap(8, 5, samples.raise_value_error)), 2)
    assert isinstance(error, ValueError) and isinstance(error, RuntimeError)
    assert type(error).__name__ == "ValueError"
    assert str(error) == "bad sample"
    where = r"Caught ValueError in DataLoader worker process 0 \(pid \d+\), batch 2"
    assert re.search(where, "\n".join(error.__notes__))
    assert isinstance(error.__cause__, WorkerTraceback)
    remote = str(error.__cause__)
    assert "in raise_value_error" in remote
    assert "ValueError: bad sample" in remote


def test_an_exception_that_cannot_travel_is_described() -> None:
    error = failure(loader_with(Trap(4, 1, samples.raise_own_error)), 0)
    assert isinstance(error, DataLoaderError)
    assert re.search(r"process 0 \(pid \d+\), batch 0 raised .*OwnError: 1 and 2", str(error))
    assert "raised by dataset[1]" in error.__notes__
    assert "in raise_own_error" in str(error.__cause__)


@pytest.mark.parametrize(
    ("action", "how"),
    [
        (samples.kill_self, r"killed by signal 9 \(SIGKILL\)"),
        (samples.crash, r"killed by signal 11 \(SIGSEGV\)"),
        (samples.exit_hard, "exited with code 7"),
        (samples.exit_soft, "exited with code 3"),
    ],
)
def test_a_death_is_reported_with_worker_and_samples(action: Any, how: str) -> None:
    error = failure(loader_with(Trap(8, 2, action)), 1, at_least=0)
    assert isinstance(error, DataLoaderError)
    assert re.search(rf"worker 1 \(pid \d+\) {how}", str(error))
    assert "batch 1 (dataset indices [2, 3])" in str(error)


def test_a_worker_killed_from_outside_is_reported_though_the_others_live() -> None:
    loader = DataLoader(Pids(60), num_workers=2)
    batches = iter(loader)
    killed = int(next(batches)[0, 0])
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(DataLoaderError, match=rf"worker 0 \(pid {killed}\) killed by signal 9"):
        list(batches)


def test_an_idle_persistent_worker_that_died_is_reported() -> None:
    loader = DataLoader(Pids(4), num_workers=2, persistent_workers=True)
    pids = [int(batch[0, 0]) for batch in loader]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(DataLoaderError, match=rf"worker 1 \(pid {pids[1]}\) killed by signal 9"):
        list(loader)
    fresh = [int(batch[0, 0]) for batch in loader]
    assert not set(fresh) & set(pids)


def test_a_death_in_a_parallel_stream_is_reported() -> None:
    dataset = CountUp(9, at=0, action=samples.exit_hard)
    error = failure(loader_with(dataset, parallel_stream=True), 0)
    assert re.search(r"DataLoader worker 0 .* exited unexpectedly", "\n".join(error.__notes__))
    assert re.search(r"worker 0 \(pid \d+\) exited with code 7", str(error))
    assert "batch 0 of the worker's stream" in str(error)


def test_a_death_over_stream_samples_names_them() -> None:
    error = failure(loader_with(CountUp(6), transform=Fatal(3)), 1, at_least=0)
    assert "exited with code 7" in str(error)
    assert "batch 1 (stream samples 2 to 3)" in str(error)


def test_a_hanging_worker_is_reported_with_its_line_and_ended() -> None:
    began = time.monotonic()
    error = failure(loader_with(Trap(8, 2, samples.hang), timeout=0.5), 1)
    assert isinstance(error, DataLoaderError)
    assert isinstance(error, RuntimeError)
    assert re.match(
        r"dataloader timeout: worker 1 \(pid \d+\) has not delivered batch 1 "
        r"\(dataset indices \[2, 3\]\) within 0.5 s",
        str(error),
    )
    _, note = error.__notes__
    assert "in hang" in note
    assert "time.sleep" in note
    # Not a speed test: without the time limit this would take as long as the worker hangs.
    assert time.monotonic() - began < samples.HANG_SECONDS


def test_a_stopped_worker_is_reported_and_ended() -> None:
    loader = DataLoader(Pids(40), num_workers=1, timeout=0.5)
    batches = iter(loader)
    stopped = int(next(batches)[0, 0])
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(DataLoaderError, match="dataloader timeout") as caught:
        list(batches)
    assert caught.value.__notes__[-1] == "the worker does not answer"


def test_a_slow_stream_is_reported_when_it_returns() -> None:
    dataset = CountUp(4, at=2, action=doze)
    for workers in (0, 1):
        error = failure(loader_with(dataset, num_workers=workers, timeout=0.5), 1)
        assert re.match(
            r"dataloader timeout: the stream took .* for the batch at sample 2", str(error)
        )


def test_what_cannot_be_pickled_is_named_before_any_worker_starts() -> None:
    # Asked for by name: by default such workers would be forked.
    fresh: dict[str, Any] = {"context": "forkserver"}
    dataset = Numbers(4)
    dataset.decoders = {"png": [int, lambda raw: raw]}  # type: ignore[attr-defined]
    error = failure(loader_with(dataset, **fresh), 0)
    assert isinstance(error, DataLoaderError)
    assert "dataset.decoders['png'][1] cannot be pickled" in str(error)
    error = failure(loader_with(Numbers(4), worker_init_fn=lambda index: None, **fresh), 0)
    assert "worker_init_fn cannot be pickled" in str(error)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_by_default_what_cannot_be_pickled_is_forked(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Numbers(4)
    dataset.decode = lambda raw: raw  # type: ignore[attr-defined]
    assert len(list(loader_with(dataset))) == 2
    said = capsys.readouterr().err
    assert "workers are forked" in said and "dataset.decode cannot be pickled" in said


def test_without_timeout_the_log_says_where_a_worker_hangs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool, "_NOTICE_SECONDS", 0.2)
    monkeypatch.setattr(pool, "_START_SECONDS", 30.0)
    # What it dozes over has no field to merge; the wait comes first.
    assert isinstance(failure(loader_with(Trap(4, 1, doze), num_workers=1), 0), ValueError)
    said = capsys.readouterr().err
    assert re.search(r"worker 0 \(pid \d+\) has not delivered batch 0 .* set timeout=", said)
    assert "in doze" in said


def test_a_sample_that_cannot_be_pickled_is_named() -> None:
    dataset = Trap(4, 2, samples.unpicklable_sample)
    error = failure(loader_with(dataset, collator=Listing()), 1)
    assert isinstance(error, DataLoaderError)
    assert "batch[0]['meta'] cannot be pickled" in str(error)
    assert "batch 1 (dataset indices [2, 3])" in str(error)
    assert "generator" in str(error)


def test_what_cannot_be_rebuilt_in_a_worker_is_said() -> None:
    dataset = Numbers(4)
    dataset.part = samples.Unrebuildable()  # type: ignore[attr-defined]
    error = failure(loader_with(dataset), 0)
    assert isinstance(error, LookupError)
    assert 'context="fork"' in "\n".join(error.__notes__)


def test_a_failing_init_function_is_reported() -> None:
    error = failure(loader_with(Numbers(4), worker_init_fn=samples.fail_to_start), 0)
    assert isinstance(error, ValueError)
    assert "raised by worker_init_fn" in error.__notes__


def test_too_little_memory_for_a_batch_is_said() -> None:
    error = failure(loader_with(Numbers(4, (5000,)), worker_init_fn=limit_files), 0)
    assert isinstance(error, DataLoaderError)
    assert "no memory to hand over batch 0 (dataset indices [0, 1])" in str(error)


def test_a_failed_loader_can_be_iterated_again() -> None:
    loader = loader_with(Trap(4, 2, samples.raise_value_error), persistent_workers=True)
    for _ in range(2):
        assert isinstance(failure(loader, 1), ValueError)


def test_exits_are_described() -> None:
    assert describe_exit(0) == ("exited with code 0", "")
    assert describe_exit(None)[0] == "vanished"
    assert describe_exit(-200)[0] == "killed by signal 200"
    assert "out of memory" in describe_exit(-signal.SIGKILL)[1]


def test_long_lists_of_indices_are_shortened() -> None:
    assert abbreviate([3, 1]) == "[3, 1]"
    assert abbreviate(range(100)) == "[0, 1, 2, 3, 4, 5, 6, 7, ... 92 more]"


def test_the_innermost_unpicklable_part_is_found() -> None:
    assert find_unpicklable([1, "a"], "value") is None
    loop: list[Any] = [lambda: 0]
    loop.append(loop)
    found = find_unpicklable(loop, "value")
    assert found is not None
    assert found[0] == "value[0]"
