"""Commands choose a default device for their process, which here is that of other tests, too."""

from collections.abc import Iterator

import pytest

import treadle as mge


@pytest.fixture(autouse=True)
def _device_as_before() -> Iterator[None]:
    before = mge.get_default_device()
    yield
    mge.set_default_device(before)
