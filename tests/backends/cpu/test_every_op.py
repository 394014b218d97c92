"""Every op on the CPU engine, its own samples, at several numbers of threads."""

from collections.abc import Iterator

import numpy as np
import pytest
from tests.backends.codegen import irregular

from treadle.backends.api import Support
from treadle.backends.cpu import eager, pool
from treadle.base.dtype import as_dtype, float32
from treadle.base.types import TensorType
from treadle.ops import REGISTRY
from treadle.ops.op import Op, as_tuple

OPS = sorted(
    (c for c in REGISTRY.values() if c.__module__.startswith("treadle.")), key=lambda c: c.name
)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = pool.get_threads()
    yield
    pool.set_threads(before)


@pytest.mark.parametrize("op", OPS, ids=lambda c: c.name)
def test_results_are_numpys_and_do_not_depend_on_threads(op: type[Op]) -> None:
    for sample in op.samples():
        kinds = sample.element_types()
        kind = float32 if float32 in kinds else kinds[0]
        arrays = sample.arrays(kind)
        types = tuple(TensorType(as_dtype(a.dtype), a.shape) for a in arrays)
        bound = eager.bind(sample.op, types)
        if isinstance(bound, Support):
            assert bound.message
            continue
        seen = []
        for threads in (1, 2, 3):
            pool.set_threads(threads)
            seen.append(as_tuple(bound(*arrays)))
        wanted = as_tuple(sample.op.reference(*arrays))
        for got, reference in zip(seen[0], wanted, strict=True):
            irregular.check(got, np.asarray(reference), str(sample), exact=False)
        for other in seen[1:]:
            assert [r.tobytes() for r in other] == [r.tobytes() for r in seen[0]]
