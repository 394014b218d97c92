"""Language models on a device: products with quantized blocks, and whole models."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.codegen import irregular
from tests.backends.codegen.test_block_products import blocks, close
from tests.llm.models.small import read
from tests.llm.models.test_stored import checkpoint

import treadle as mge
from treadle.backends.api import Support
from treadle.backends.object_cache import ObjectCache
from treadle.backends.rendered import eager
from treadle.backends.rendered.compiler import RenderedCompiler
from treadle.base import dtype as dt
from treadle.base.blocks.panels import LAYOUTS, to_panels
from treadle.base.dtype import as_dtype
from treadle.base.types import TensorType
from treadle.engine.eager.fallback import fallback
from treadle.llm.models import build
from treadle.ops.block_matmul import BlockExperts, BlockMatmul
from treadle.ops.cache import CachedAttention, CacheUpdate
from treadle.ops.op import Op
from treadle.ops.rope import Rope
from treadle.runtime.array import DeviceArray
from treadle.runtime.opened import OpenDevice

PLACES = ("processor", "card", "fine")


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: Any) -> dict[str, RenderedCompiler]:
    """That of this processor, what graphics cards are given, and the same for threads of CUDA's."""
    platforms: Any = importlib.import_module("treadle.backends.opencl.platforms")
    renderer: Any = importlib.import_module("treadle.backends.opencl.renderer")
    found, made = platforms.devices()[0][0], {}
    for place in PLACES:
        printer = renderer.ClRenderer(found, single=place == "processor")
        if place == "fine":
            printer._target = replace(printer._target, fine=True)
        made[place] = RenderedCompiler(printer)
        made[place].library.cache = ObjectCache(tmp_path_factory.mktemp(place))
    return made


def computed(compiler: RenderedCompiler, device: Any, op: Op, *arrays: np.ndarray) -> np.ndarray:
    types = [TensorType(as_dtype(a.dtype), a.shape) for a in arrays]
    launch, opened = eager.prepare(compiler, op, types), OpenDevice("opencl0", device)
    assert not isinstance(launch, Support), launch
    found = launch(*(DeviceArray(opened, a.dtype, a.shape, host=a) for a in arrays))
    return np.asarray(found.host())


CASES = [
    (name, place, kind)
    for (i, name), (j, place) in itertools.product(enumerate(LAYOUTS), enumerate(PLACES))
    for k, kind in enumerate(("int16", "int8"))
    if (i + j + k) % 2 == 0
]
"""Every format in all places, in one rounding in each of them, and both in turn."""


@pytest.mark.parametrize(("name", "place", "kind"), CASES)
def test_every_format(name: str, place: str, kind: str, compilers: Any, device: Any) -> None:
    panels = to_panels(name, blocks(name, 37, 2))
    for rows in (1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 2 * LAYOUTS[name].elements))
        op, given = BlockMatmul(name, 37, kind), (x.astype(np.float32), panels)
        close(computed(compilers[place], device, op, *given), op.reference(*given))


@pytest.mark.parametrize("place", PLACES)
def test_experts(place: str, compilers: Any, device: Any) -> None:
    rng = np.random.default_rng(6)
    panels = np.stack([to_panels("Q4_K", blocks("Q4_K", 37, 1, seed)) for seed in range(4)])
    experts = rng.integers(-4, 4, (9, 2)).astype(np.int32)
    x = rng.standard_normal((9, 1, 256)).astype(np.float32)
    op, given = BlockExperts("Q4_K", 37), (x, panels, experts)
    close(computed(compilers[place], device, op, *given), op.reference(*given))


STEPS = CachedAttention, CacheUpdate, Rope
"""Other ops of a step."""


@pytest.mark.parametrize(
    ("op", "arrays"),
    [
        (op, arrays)
        for kind in STEPS
        for op, arrays in irregular.samples(kind, (dt.float32,))[:4]
        if kind is not CachedAttention or arrays[5].ndim == 1  # pages have 128 positions and more
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_other_ops_of_a_step(op: Op, arrays: Any, compilers: Any, device: Any) -> None:
    """As graphics cards compute them: scratch memory is the launch's."""
    got = computed(compilers["card"], device, op, *arrays)
    np.testing.assert_allclose(got, op.reference(*arrays), rtol=0, atol=1e-5)


@pytest.fixture
def on_the_device() -> Iterator[None]:
    before = mge.get_default_device()
    yield
    mge.set_default_device(before)


@pytest.mark.parametrize(("format", "kept"), [("Q4_0", None), ("Q8_0", "int8")])
def test_a_model_gives_the_tokens_of_the_host(
    format: str, kept: str | None, on_the_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of different lengths, read in pieces, and greedy tokens; nothing falls back."""
    given, prompts = checkpoint(format), [[3, 90, 17, 55, 2, 81, 40], [9, 66, 30]]
    found = []
    for device in ("cpu0", "opencl0"):
        mge.set_default_device(device)
        model = build(given, "stored", "int16")
        cache = model.cache
        monkeypatch.setattr(model, "cache", lambda n, size, of=cache: of(n, size, kept))
        with fallback("error"):
            found.append(read(model, prompts, 4, 5))
    (host, texts), (logits, others) = found
    assert texts == others
    # Sums in another order flip roundings of what is multiplied, and kept, in 16 and 8 bits.
    most = 1e-3 if kept is None else 1e-2
    for one, other in zip(host, logits, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=most)
