"""Every op with open extents: one program serves them, or the table says why each has its own."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
from tests.jit.test_every_op_traced import TAKEN, first

import treadle as mge
from treadle import jit
from treadle.engine.extents import plans

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

NUMBERS = "a number is needed for the extent"
CHANNELS = f"{NUMBERS}: channels and windows, which are open here as well, lay out the kernel"
ALONE = {
    **dict.fromkeys(("attention", "attention_grad"), f"{NUMBERS}: features of a head"),
    **dict.fromkeys(("conv", "int_conv", "wide_conv"), CHANNELS),
    **dict.fromkeys(("conv_grad_input", "conv_grad_weight"), CHANNELS),
    **dict.fromkeys(("winograd_conv", "winograd_conv_grad_weight"), CHANNELS),
}
"""Ops whose samples have programs of their own where all axes are open: how the reason begins."""
NOBODY = {"all_reduce_bucket": "needs a group of processes"}


@pytest.mark.parametrize("name", [n for n in TAKEN if n not in NOBODY])
def test_open_extents_share_a_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "recall_regime", lambda *given: None)
    sample, dtype = next(first(name))
    given = [mge.tensor(a, dtype=str(a.dtype)) for a in sample.arrays(dtype)]

    def called(*xs: mge.Tensor) -> Any:
        return xs[0].apply(sample.op, xs)

    compiled = jit.compile(dynamic=True)(called)
    with np.errstate(all="ignore"):
        compiled(*given)
    families = chain.from_iterable(compiled._captures.families.values())
    reasons = {
        f.alone for f in families if any(not t.is_static for t in f.captured.graph.input_types)
    }
    if name in ALONE:
        assert any(ALONE[name].partition(":")[0] in reason for reason in reasons), reasons
    else:
        assert reasons <= {""}
