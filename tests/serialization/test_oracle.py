"""Files as PyTorch itself writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treadle.serialization import load

torch = pytest.importorskip("torch", reason="the comparison framework is not installed")

pytestmark = pytest.mark.oracle


def assert_equal(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        wanted = theirs.detach()
        if theirs.dtype == torch.bfloat16:
            mine, wanted = mine.numpy().astype(np.float32), wanted.float()
        np.testing.assert_array_equal(np.asarray(mine), wanted.numpy())
    elif isinstance(theirs, dict):
        assert list(mine) == list(theirs)
        for key, value in theirs.items():
            assert_equal(mine[key], value)
    elif isinstance(theirs, list | tuple):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_equal(one, other)
    else:
        assert mine == theirs


def test_checkpoint(tmp_path: Path) -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.LSTM(64, 2)
    )
    opt = torch.optim.AdamW(net.parameters())
    net(torch.randn(2, 3, 6, 6))[0].sum().backward()
    opt.step()
    state = {"net": net.state_dict(), "opt": opt.state_dict(), "epoch": 3}
    torch.save(state, tmp_path / "net.pt")
    assert_equal(load(tmp_path / "net.pt"), state)


def test_views_and_dtypes(tmp_path: Path) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    floats = ["float16", "bfloat16", "float64", "complex64"]
    kinds = [*floats, "int8", "uint8", "int16", "int32", "int64", "bool"]
    obj = [
        [x[:, 1:], x.permute(2, 0, 1), x[0, 0, 0], torch.zeros(0, 3), torch.ones(1).expand(5)],
        {name: torch.tensor([0, 1, 1]).to(getattr(torch, name)) for name in kinds},
        torch.nn.Parameter(torch.ones(3)),
        tuple(x.shape),
    ]
    torch.save(obj, tmp_path / "all.pt")
    assert_equal(load(tmp_path / "all.pt"), obj)
