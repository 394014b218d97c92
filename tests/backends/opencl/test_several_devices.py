"""One program over an OpenCL device and the host."""

import numpy as np

import treadle as mge
from treadle.engine.execute import Scheduler


def test_parts_run_where_their_values_are() -> None:
    @mge.jit.compile
    def there_and_back(x: mge.Tensor) -> tuple[mge.Tensor, mge.Tensor]:
        there = x.to("opencl0") * 2.0
        return there, there.to("cpu0") + 1.0

    x = np.arange(6, dtype=np.float32)
    for _ in range(2):
        there, back = there_and_back(mge.tensor(x, device="cpu0"))
        assert (there.device, back.device) == ("opencl0", "cpu0")
        np.testing.assert_array_equal(there.numpy(), x * 2)
        np.testing.assert_array_equal(back.numpy(), x * 2 + 1)
    assert isinstance(there_and_back.variants[0].stages.executor, Scheduler)
    assert there_and_back.counters.copies == 2 * 2
    timeline = there_and_back.profile(mge.tensor(x, device="cpu0"), repeats=1)
    assert {span.device for span in timeline.spans} == {"opencl0", "cpu0"}
