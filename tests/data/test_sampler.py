import json
import pickle
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.data import (
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    SequentialSampler,
    StreamSampler,
)
from treadle.data import sampler as sampler_module


@st.composite
def shares(draw: st.DrawFn) -> tuple[int, int, int]:
    """Size of a dataset, number of ranks, batch size that fits a rank's share."""
    size = draw(st.integers(1, 60))
    world = draw(st.integers(1, 7))
    return size, world, draw(st.integers(1, -(-size // world)))


@given(shares(), st.booleans())
def test_ranks_share_an_epoch(case: tuple[int, int, int], drop_last: bool) -> None:
    size, world, batch_size = case
    share = -(-size // world)
    for kind in (SequentialSampler, RandomSampler):
        ranks = [
            kind(range(size), batch_size, drop_last, world_size=world, rank=rank)
            for rank in range(world)
        ]
        epochs = [list(sampler) for sampler in ranks]
        assert [len(epoch) for epoch in epochs] == [len(sampler) for sampler in ranks]
        kept = share - share % batch_size if drop_last else share
        assert all(len(list(chain(*epoch))) == kept for epoch in epochs)
        assert all(len(batch) == batch_size for epoch in epochs for batch in epoch[:-1])
        if not drop_last:
            seen = Counter(chain(*chain(*epochs)))
            assert set(seen) == set(range(size))
            assert seen.total() == share * world
            # Padding repeats as evenly as it can.
            assert max(seen.values()) - min(seen.values()) <= 1


def test_padding_comes_from_the_start_and_is_dealt_with_stride() -> None:
    ranks = [list(SequentialSampler(range(5), 1, world_size=3, rank=r)) for r in range(3)]
    assert ranks == [[[0], [3]], [[1], [4]], [[2], [0]]]


def test_sequential_sampler_keeps_the_order() -> None:
    assert list(SequentialSampler(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(SequentialSampler(range(5), 2, drop_last=True)) == [[0, 1], [2, 3]]
    indices = [4, 0, 2]
    sampler = SequentialSampler(range(5), 2, indices=indices, world_size=2, rank=1)
    assert list(sampler) == [[0, 4]]
    assert len(sampler) == 1
    assert indices == [4, 0, 2]


def test_random_sampler_is_a_permutation_that_changes_and_repeats() -> None:
    first, second = RandomSampler(range(50), 8, seed=3), RandomSampler(range(50), 8, seed=3)
    epochs = [list(chain(*first)) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))
    assert epochs[0] != epochs[1]
    assert [list(chain(*second)) for _ in range(2)] == epochs
    chosen = list(chain(*RandomSampler(range(50), 2, indices=[3, 1, 4])))
    assert sorted(chosen) == [1, 3, 4]


def test_replacement_sampler_follows_its_weights() -> None:
    sampler = ReplacementSampler(range(3), 100, num_samples=3000, weights=[0, 1, 3], seed=0)
    seen = Counter(chain(*sampler))
    assert len(sampler) == 30
    assert seen.total() == 3000
    assert seen[0] == 0
    assert 2.5 < seen[2] / seen[1] < 3.5
    plain = list(chain(*ReplacementSampler(range(4), 4, num_samples=200, seed=0)))
    assert set(plain) == {0, 1, 2, 3}


def test_replacement_sampler_ranks_draw_one_sequence() -> None:
    whole = list(chain(*ReplacementSampler(range(9), 1, num_samples=6, seed=5)))
    ranks = [
        list(chain(*ReplacementSampler(range(9), 1, num_samples=6, world_size=2, rank=r, seed=5)))
        for r in range(2)
    ]
    assert ranks == [whole[0::2], whole[1::2]]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "3 entries"),
        ([1.0, -1.0, 1.0], "not negative"),
        ([0.0, 0.0, 0.0], "positive sum"),
        ([1.0, float("nan"), 1.0], "finite"),
        ("abc", "could not convert"),
        ({1, 2, 3}, "a sequence"),
    ],
)
def test_replacement_sampler_refuses_bad_weights(weights: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplacementSampler(range(3), weights=weights)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size should be a positive integer"),
        ({"batch_size": True}, "batch_size should be a positive integer"),
        ({"batch_size": 2.0}, "batch_size should be a positive integer"),
        ({"drop_last": 1}, "drop_last should be a boolean"),
        ({"world_size": 0}, "world_size should be a positive integer"),
        ({"world_size": 2, "rank": 2}, r"rank should be in \[0, 2\)"),
        ({"indices": {1}}, "indices should be None or a sequence"),
        ({"batch_size": 6}, "batch_size=6 is larger than the 5 samples"),
        ({"batch_size": 4, "world_size": 2, "rank": 0}, "larger than the 3 samples"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RandomSampler(range(5), **arguments)  # type: ignore[arg-type]


def test_an_empty_dataset_is_named() -> None:
    with pytest.raises(ValueError, match=r"empty dataset \(list\)"):
        SequentialSampler([])


def test_state_returns_to_the_same_epoch() -> None:
    sampler = RandomSampler(range(20), 4, seed=1)
    list(sampler)
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = [list(sampler) for _ in range(2)]
    other = RandomSampler(range(20), 4, seed=99)
    other.load_state_dict(state)
    assert [list(other) for _ in range(2)] == expected


def test_a_sampler_without_state_refuses_one() -> None:
    sampler = StreamSampler(2)
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match="keeps no state"):
        sampler.load_state_dict({"state": 1})


def test_infinite_starts_again() -> None:
    sampler = Infinite(RandomSampler(range(5), 2, seed=0))
    assert len(sampler) == 2**63 - 1
    assert sampler.batch_size == 2
    passes = [list(chain(*islice(sampler, 3))) for _ in range(3)]
    assert all(sorted(one) == list(range(5)) for one in passes)
    assert passes[0] != passes[1]
    with pytest.raises(NotImplementedError):
        sampler.sample()


def test_infinite_state_is_a_place_in_a_pass() -> None:
    sampler = Infinite(RandomSampler(range(5), 2, seed=0))
    list(islice(sampler, 4))
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = list(islice(sampler, 6))
    other = Infinite(RandomSampler(range(5), 2, seed=7))
    other.load_state_dict(state)
    assert list(islice(other, 6)) == expected


def test_random_sampler_pickles() -> None:
    sampler = RandomSampler(range(9), 2, seed=4)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


def test_stream_sampler_counts_in_groups() -> None:
    assert list(islice(StreamSampler(3), 2)) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="batch_size"):
        StreamSampler(0)


def test_indices_are_plain_integers() -> None:
    for sampler in (RandomSampler(range(4)), ReplacementSampler(range(4))):
        assert all(type(index) is int for index in chain(*sampler))


def test_ranks_of_the_process_group_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(sampler_module.distributed, "get_rank", lambda: 2)
    assert list(SequentialSampler(range(8))) == [[2], [5], [0]]
    assert list(SequentialSampler(range(2), world_size=1, rank=0)) == [[0], [1]]
    # All ranks have to shuffle alike.
    assert RandomSampler(range(9)).rng.rand() == np.random.RandomState(0).rand()


def test_a_map_sampler_of_ones_own() -> None:
    class Backwards(MapSampler):
        def sample(self) -> list[int]:
            return list(range(len(self.dataset)))[::-1]

    assert list(Backwards(range(5), batch_size=2)) == [[4, 3], [2, 1], [0]]
    assert list(Backwards(range(5), 2, drop_last=True)) == [[4, 3], [2, 1]]
    assert list(Backwards(range(5), world_size=2, rank=1)) == [[3], [1], [4]]
    with pytest.raises(NotImplementedError, match="overrides neither"):
        list(MapSampler(range(5)))
