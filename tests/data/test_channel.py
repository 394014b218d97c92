import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from treadle.data import channel as channel_module
from treadle.data.channel import Channel, Parcel

LARGE = 1 << 20


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    pair = [Channel(end) for end in multiprocessing.Pipe()]
    yield pair[0], pair[1]
    for end in pair:
        end.close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


dtypes = st.sampled_from([np.uint8, np.int64, np.float32, np.bool_, np.dtype("<U3")])
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
arrays = st.builds(lambda shape, dtype: np.ones(shape, dtype), shapes, dtypes)
leaves = (
    arrays | st.integers() | st.text(max_size=3) | hnp.arrays(np.int32, (3, 2)).map(np.transpose)
)
messages = st.recursive(leaves, lambda m: st.lists(m, max_size=3) | st.tuples(m, m), max_leaves=6)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


@given(messages, st.booleans())
def test_what_is_sent_arrives(message: Any, through_memory_file: bool) -> None:
    limit = channel_module._INLINE_LIMIT
    channel_module._INLINE_LIMIT = 0 if through_memory_file else limit
    left, right = (Channel(end) for end in multiprocessing.Pipe())
    try:
        left.send(message)
        assert_same(right.receive(), message)
    finally:
        channel_module._INLINE_LIMIT = limit
        left.close()
        right.close()


@pytest.mark.parametrize("size", [10, LARGE])
def test_arrays_arrive_writable_aligned_and_unshared(
    ends: tuple[Channel, Channel], size: int
) -> None:
    sent = np.arange(size, dtype=np.int32)
    parcel = Parcel.pack({"a": sent, "b": "text"})
    ends[0].post(parcel)
    ends[0].post(parcel)
    parcel.close()
    first, second = ends[1].receive(), ends[1].receive()
    assert first["a"].flags.writeable
    assert first["a"].flags.aligned
    first["a"][:] = 0
    np.testing.assert_array_equal(second["a"], sent)


def test_large_objects_that_are_no_arrays_go_through_memory_too(
    ends: tuple[Channel, Channel],
) -> None:
    # Nobody reads meanwhile: through the pipe this would block.
    ends[0].send("x" * LARGE)
    assert ends[1].receive() == "x" * LARGE


def test_hoarded_batches_do_not_use_up_file_descriptors(ends: tuple[Channel, Channel]) -> None:
    before = open_files()
    hoard = []
    for number in range(100):
        ends[0].send(np.full(LARGE // 8, number, np.uint8))
        hoard.append(ends[1].receive())
    assert open_files() - before <= channel_module._MOST_MAPPINGS
    assert [array[-1] for array in hoard] == list(range(100))
    hoard.clear()
    assert open_files() == before


def test_nothing_is_sent_when_pickling_fails(ends: tuple[Channel, Channel]) -> None:
    before = open_files()
    with pytest.raises(Exception, match=r"pickle|local object"):
        ends[0].send([np.zeros(LARGE), lambda: 0])
    assert open_files() == before
    ends[0].send("next")
    assert ends[1].receive() == "next"


def test_lack_of_memory_is_an_error_and_leaves_nothing_open(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    before = open_files()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        ends[0].send(np.zeros(LARGE))
    assert open_files() == before


def test_the_end_of_the_other_side_is_seen(ends: tuple[Channel, Channel]) -> None:
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
