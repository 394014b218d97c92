import json
import multiprocessing
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.sample_datasets import (
    AddOne,
    CountUp,
    Draws,
    Listing,
    Lying,
    Numbers,
    Ragged,
    Refusing,
    Trap,
    note_start,
    raise_stop_iteration,
    raise_value_error,
)

from treadle.base.errors import ShapeError
from treadle.data import (
    Collator,
    DataLoader,
    Infinite,
    RandomSampler,
    ReplacementSampler,
    Sampler,
    SequentialSampler,
    StreamSampler,
    get_worker_info,
)
from treadle.data.dataset import ArrayDataset
from treadle.data.transform import PseudoTransform


def labels(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def numbers(batches: Any) -> list[list[int]]:
    return [batch.ravel().tolist() for batch in batches]


def test_defaults() -> None:
    loader = DataLoader(Numbers(3))
    assert isinstance(loader.sampler, SequentialSampler)
    assert isinstance(loader.transform, PseudoTransform)
    assert isinstance(loader.collator, Collator)
    assert labels(loader) == [[0], [1], [2]]
    assert isinstance(DataLoader(CountUp(2)).sampler, StreamSampler)


def test_batches_are_lists_of_arrays() -> None:
    dataset = ArrayDataset(np.zeros((10, 3, 4), np.uint8), np.arange(10))
    loader = DataLoader(dataset, SequentialSampler(dataset, 4))
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    assert all(type(batch) is list for batch in batches)
    assert [batch[0].shape for batch in batches] == [(4, 3, 4), (4, 3, 4), (2, 3, 4)]
    assert batches[0][0].dtype == np.uint8


def test_any_sequence_is_a_dataset() -> None:
    assert numbers(DataLoader([np.array(5), np.array(6)])) == [[5], [6]]


def test_transform_and_collator_are_applied() -> None:
    dataset = Numbers(3)
    loader = DataLoader(dataset, SequentialSampler(dataset, 3), AddOne(), Listing())
    (batch,) = loader
    assert [sample[0].tolist() for sample in batch] == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_workers": -1}, ValueError, "num_workers should not be negative"),
        ({"timeout": -1}, ValueError, "timeout should not be negative"),
        ({"prefetch_factor": 0}, ValueError, "prefetch_factor"),
        ({"persistent_workers": True}, ValueError, "needs num_workers"),
        ({"sampler": StreamSampler()}, TypeError, "needs a map-style sampler"),
        ({"sampler": [[0]]}, TypeError, "needs a map-style sampler, got list"),
        ({"dataset": 3}, TypeError, "a dataset is a Dataset or a sequence"),
        ({"dataset": []}, ValueError, r"empty dataset \(list\)"),
        ({"dataset": Numbers(0)}, ValueError, r"empty dataset \(Numbers\)"),
        ({"num_workers": 1, "context": "thread"}, ValueError, "thread"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DataLoader(**{"dataset": Numbers(3), **arguments})


def test_a_stream_needs_a_stream_sampler_and_has_no_length() -> None:
    with pytest.raises(TypeError, match="needs a StreamSampler"):
        DataLoader(CountUp(3), SequentialSampler(Numbers(3)))
    with pytest.raises(TypeError, match="no length"):
        len(DataLoader(CountUp(3)))


# ── what is wrong with a dataset is said with the index ──────────────────────────────────────


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_names_the_index(workers: int) -> None:
    dataset = Trap(8, 5, raise_value_error)
    seen = []
    with pytest.raises(ValueError, match="bad sample") as caught:
        for batch in DataLoader(dataset, SequentialSampler(dataset, 2), num_workers=workers):
            seen.append(batch[1].tolist())
    assert seen == [[0, 1], [2, 3]]
    assert "raised by dataset[5]" in notes(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_ragged_samples_are_named(workers: int) -> None:
    dataset = Ragged()
    sampler = SequentialSampler(dataset, 4)
    with pytest.raises(ShapeError, match=r"sample 1 float32\[3,4\]") as caught:
        list(DataLoader(dataset, sampler, num_workers=workers))
    assert "dataset indices [4, 5, 6, 7]" in notes(caught.value)
    assert "sample 1 of the batch is number 5" in notes(caught.value)


def test_a_lying_length_is_named() -> None:
    with pytest.raises(IndexError) as caught:
        list(DataLoader(Lying(9)))
    assert "dataset[6], while len(dataset) is 9" in notes(caught.value)


def test_a_failing_transform_names_the_sample() -> None:
    dataset = Numbers(8)
    with pytest.raises(KeyError) as caught:
        list(DataLoader(dataset, SequentialSampler(dataset, 4), Refusing()))
    assert "Refusing, sample 1 of the batch" in notes(caught.value)
    assert "dataset indices [4, 5, 6, 7]" in notes(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stray_stop_iteration_does_not_shorten_the_epoch(workers: int) -> None:
    with pytest.raises(RuntimeError, match=r"dataset\[1\] raised StopIteration"):
        list(DataLoader(Trap(3, 1, raise_stop_iteration), num_workers=workers))


# ── workers: same batches, same order, whatever their number ─────────────────────────────────


@settings(max_examples=5)
@given(
    size=st.integers(1, 30),
    batch_size=st.integers(1, 9),
    workers=st.integers(1, 3),
    prefetch=st.integers(1, 3),
    kind=st.sampled_from([SequentialSampler, RandomSampler, ReplacementSampler]),
    drop_last=st.booleans(),
)
def test_order_does_not_depend_on_workers(
    size: int, batch_size: int, workers: int, prefetch: int, kind: Any, drop_last: bool
) -> None:
    dataset = Numbers(size)

    def sampler() -> Sampler:
        seed = {} if kind is SequentialSampler else {"seed": 7}
        return kind(dataset, min(batch_size, size), drop_last, **seed)

    serial = DataLoader(dataset, sampler())
    parallel = DataLoader(dataset, sampler(), num_workers=workers, prefetch_factor=prefetch)
    for _ in range(2):
        expected, actual = list(serial), list(parallel)
        assert labels(actual) == labels(expected)
        assert len(actual) == len(parallel)
        for ours, theirs in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])


def test_large_batches_keep_order_and_can_be_hoarded() -> None:
    dataset = Numbers(24, shape=(64, 64))
    loader = DataLoader(dataset, SequentialSampler(dataset, 4), num_workers=2)
    batches = list(loader)
    assert labels(batches) == [list(range(i, i + 4)) for i in range(0, 24, 4)]
    for batch in batches:
        assert (batch[0] == batch[1][:, None, None]).all()
        batch[0] += 1


@pytest.mark.parametrize("context", ["fork", "spawn"])
# Forking a process that has threads is what the option warns of.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_other_start_methods(context: str) -> None:
    dataset = Numbers(6)
    loader = DataLoader(dataset, SequentialSampler(dataset, 2), num_workers=1, context=context)
    assert labels(loader) == [[0, 1], [2, 3], [4, 5]]


# Forking a process that has threads is what the option warns of.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_fork_takes_what_cannot_be_pickled() -> None:
    dataset = Numbers(4)
    dataset.decode = lambda: 0  # type: ignore[attr-defined]
    assert len(list(DataLoader(dataset, num_workers=1, context="fork"))) == 4


def test_nested_iterations_have_their_own_workers() -> None:
    dataset = Numbers(4)
    loader = DataLoader(
        dataset, SequentialSampler(dataset, 2), num_workers=1, persistent_workers=True
    )
    pairs = [(int(a[1][0]), int(b[1][0])) for a in loader for b in loader]
    assert pairs == [(0, 0), (0, 2), (2, 0), (2, 2)]


def test_infinite_sampler_is_read_only_as_far_as_needed() -> None:
    dataset = Numbers(5)
    for workers in (0, 1):
        loader = DataLoader(dataset, Infinite(SequentialSampler(dataset, 3)), num_workers=workers)
        assert labels(islice(loader, 5)) == [[0, 1, 2], [3, 4], [0, 1, 2], [3, 4], [0, 1, 2]]


# ── seeds ────────────────────────────────────────────────────────────────────────────────────


def draws(loader: DataLoader) -> list[list[float]]:
    return [[float(field[0]) for field in batch] for batch in loader]


def test_workers_draw_apart_and_reproducibly() -> None:
    def run(persistent: bool) -> list[list[list[float]]]:
        loader = DataLoader(
            Draws(4), num_workers=2, seed=11, persistent_workers=persistent, prefetch_factor=1
        )
        return [draws(loader) for _ in range(2)]

    epochs = run(False)
    assert epochs == run(True)
    seeds = [[int(draw[2]) for draw in epoch] for epoch in epochs]
    for one in seeds:
        assert one == [one[0], one[0] + 1] * 2
    assert seeds[0] != seeds[1]
    values = {value for epoch in epochs for draw in epoch for value in draw[:2]}
    assert len(values) == 16


def test_without_a_seed_numpy_decides() -> None:
    loader = DataLoader(Draws(2), num_workers=1)
    np.random.seed(5)
    first = draws(loader)
    np.random.seed(5)
    assert draws(loader) == first
    assert draws(loader) != first


def test_init_function_comes_after_seeding() -> None:
    loader = DataLoader(Draws(2), num_workers=2, worker_init_fn=note_start)
    first = [draw[1] for draw in draws(loader)]
    assert first == [np.random.RandomState(1000 + index).rand() for index in range(2)]


def test_there_is_no_worker_here() -> None:
    assert get_worker_info() is None


# ── streams ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_comes_whole_and_ends(workers: int) -> None:
    # Its first sample is array([0]), which is false, and its last batch is short.
    loader = DataLoader(CountUp(7), StreamSampler(3), num_workers=workers)
    for _ in range(2):
        assert numbers(loader) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_stream_has_no_batches(workers: int) -> None:
    assert list(DataLoader(CountUp(0), num_workers=workers)) == []


@pytest.mark.parametrize("persistent", [False, True])
def test_parallel_streams_take_turns_until_each_has_ended(persistent: bool) -> None:
    loader = DataLoader(
        CountUp(9),
        StreamSampler(2),
        num_workers=2,
        parallel_stream=True,
        persistent_workers=persistent,
    )
    for _ in range(2):
        assert numbers(loader) == [[0, 2], [1, 3], [4, 6], [5, 7], [8]]


def test_a_parallel_stream_without_workers_is_a_stream() -> None:
    assert numbers(DataLoader(CountUp(2), parallel_stream=True)) == [[0], [1]]


@pytest.mark.parametrize(("workers", "parallel"), [(0, False), (1, False), (1, True)])
def test_a_failing_stream_delivers_what_came_before(workers: int, parallel: bool) -> None:
    loader = DataLoader(
        CountUp(9, at=5), StreamSampler(2), num_workers=workers, parallel_stream=parallel
    )
    seen = []
    with pytest.raises(ValueError, match="bad sample") as caught:
        for batch in loader:
            seen.append(batch.ravel().tolist())
    assert seen == [[0, 1], [2, 3]]
    assert "raised by the stream after sample 4" in notes(caught.value)


def test_large_stream_samples_reach_the_workers() -> None:
    class Wide(CountUp):
        def __iter__(self) -> Any:
            return (np.full(100_000, number) for number in range(6))

    loader = DataLoader(Wide(0), StreamSampler(2), num_workers=0)
    assert [batch[:, -1].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


# ── coming back to a place in an epoch ───────────────────────────────────────────────────────


@settings(max_examples=6)
@given(consumed=st.integers(0, 10), workers=st.sampled_from([0, 0, 0, 1]))
def test_state_continues_with_the_next_batch(consumed: int, workers: int) -> None:
    dataset = Numbers(10)

    def fresh(seed: int) -> DataLoader:
        sampler = RandomSampler(dataset, 2, seed=seed)
        return DataLoader(dataset, sampler, num_workers=workers, seed=1)

    def epochs(loader: DataLoader, count: int) -> Any:
        return (batch for _ in range(count) for batch in loader)

    everything = labels(epochs(fresh(3), 4))
    running = fresh(3)
    batches = epochs(running, 2)
    before = labels(islice(batches, consumed))
    state = json.loads(json.dumps(running.state_dict()))
    resumed = fresh(99)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    after = labels(resumed)
    assert before + after + labels(resumed) == everything[: consumed + len(after) + 5]
    # A whole epoch handed out ends only when the next batch is asked for.
    assert len(after) == (5 - consumed % 5 if consumed % 5 or not consumed else 0)


def test_an_iteration_that_was_left_counts_as_an_epoch() -> None:
    loader = DataLoader(Draws(4), num_workers=1, seed=0)
    first = next(iter(loader))[2]
    assert next(iter(loader))[2] != first


def test_the_place_in_a_stream_cannot_be_saved() -> None:
    loader = DataLoader(CountUp(3))
    with pytest.raises(TypeError, match="stream"):
        loader.state_dict()
    with pytest.raises(TypeError, match="stream"):
        loader.load_state_dict({})


@pytest.mark.parametrize(
    ("given", "sampler"),
    [
        ({"batch_size": 4, "shuffle": True}, "RandomSampler(dataset, batch_size=4)"),
        ({"shuffle": True}, "RandomSampler(dataset, batch_size=1)"),
        ({"batch_size": 4}, "SequentialSampler(dataset, batch_size=4)"),
    ],
)
def test_arguments_of_pytorch_are_answered_with_the_sampler(given: Any, sampler: str) -> None:
    with pytest.raises(TypeError) as caught:
        DataLoader([1, 2, 3], **given)
    assert str(caught.value).endswith(f"use DataLoader(dataset, {sampler})")


def _sum_of_labels(results: Any) -> None:
    dataset = Numbers(6)
    loader = DataLoader(dataset, SequentialSampler(dataset, 2), num_workers=1)
    results.put(sum(sum(batch) for batch in labels(loader)))


# Forking a process that has threads is what this is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own() -> None:
    dataset = Numbers(4)
    # Starts the fork server, which a fork of this process inherits and cannot use.
    assert len(list(DataLoader(dataset, num_workers=1))) == 4
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=_sum_of_labels, args=(results,))
    process.start()
    process.join()
    assert process.exitcode == 0 and results.get() == sum(range(6))
    process.close()
    results.close()
