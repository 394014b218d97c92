"""The gate of sizes of PyTorch's models: what it lets through, and what it must not."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with PyTorch")

from tests.zoo import torch_sizes  # noqa: E402

from treadle.engine.extents.regime import Regime  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


class Tokens(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(60, 8)

    def forward(self, x: Any) -> Any:
        rows = self.table(x)
        return torch.softmax(rows @ rows.transpose(1, 2), -1) @ rows


class Pinned(Tokens):
    """Writes its positions out, so that each length is another graph."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) + sum(i for i in range(x.shape[1]))


def lengths() -> list[Any]:
    return [torch_sizes.tokens(size) for size in torch_sizes.LENGTHS]


def test_a_model_that_shares_its_programs_is_let_through() -> None:
    cells, fine = torch_sizes.judged(Tokens(), lengths())
    assert fine and cells[-1] == ""
    assert cells[1] == "1" and cells[4] == "1", "one graph of PyTorch's, one capture"


def test_a_graph_for_each_length_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sizes, "exported", lambda *given: (0.0, []))
    cells, fine = torch_sizes.judged(Pinned(), lengths())
    assert not fine and "graphs" in cells[-1]


def test_results_that_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sizes, "exported", lambda *given: (0.0, []))
    monkeypatch.setattr(torch_sizes, "gap", lambda got, want: float("nan"))
    cells, fine = torch_sizes.judged(Tokens(), lengths())
    assert not fine and "differs by nan" in cells[-1]


def test_guards_that_hold_at_one_size_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for each length, of which none serves another one."""
    at, first = Regime.at, {}

    def once(self: Regime, extents: tuple[int, ...]) -> Any:
        return at(self, extents) if first.setdefault(self, extents) == extents else None

    monkeypatch.setattr(Regime, "at", once)
    cells, fine = torch_sizes.judged(Tokens(), lengths())
    assert not fine
    found = re.findall(r"(\d+) programs of one graph", cells[-1])
    assert len(found) == 2 and min(map(int, found)) > 3
