"""PyTorch's caches of compiled graphs, and compiled functions that it saves."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its compiler
]

torch = pytest.importorskip("torch", reason="needs PyTorch")

from torch._functorch import config  # noqa: E402

from treadle.interop.torch import caches  # noqa: E402

TRAINS = """
import os, sys
import torch
import torch._dynamo.utils as utils

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
with torch._functorch.config.patch(bundled_autograd_cache=True):
    run = torch.compile(net, backend=sys.argv[1])
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        net.zero_grad()
        run(x).square().sum().backward()
ours = [p.grad.clone() for p in net.parameters()]
net.zero_grad()
net(x).square().sum().backward()
for grad, p in zip(ours, net.parameters(), strict=True):
    torch.testing.assert_close(grad, p.grad, rtol=1e-4, atol=1e-5)
known = utils.counters["aot_autograd"]
print(known["autograd_cache_hit"], known["autograd_cache_saved"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "graphs"))
    monkeypatch.setenv("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")
    return tmp_path


def trained(backend: str) -> list[int]:
    """Graphs that a process found in the cache, and those that it added."""
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAINS, backend],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not told.returncode, told.stderr
    return [int(n) for n in told.stdout.split()]


def test_a_second_process_finds_graphs_of_this_backend_alone(folder: Path) -> None:
    assert trained("treadle") == [0, 2]
    assert trained("treadle") == [2, 0]
    assert trained("aot_eager")[0] == 0


def normed(x: Any, weight: Any) -> Any:
    return torch.nn.functional.layer_norm(x @ weight, (4,)).relu()


def test_compiled_functions_are_saved(folder: Path) -> None:
    torch._dynamo.reset()
    x, weight = torch.randn(3, 4), torch.randn(4, 4)
    made = torch.compile(normed, fullgraph=True, backend="treadle")
    made = made.aot_compile(((x, weight), {}))
    path = folder / "normed.bin"
    made.save_compiled_function(str(path))
    with path.open("rb") as file:
        again = torch.compiler.load_compiled_function(file)
    for run in (made, again):
        torch.testing.assert_close(run(x, weight), normed(x, weight))


def test_keys_of_users_stay_part_of_the_key() -> None:
    with torch.compiler.config.patch(cache_key_tag="mine"), caches.named():
        assert torch.compiler.config.cache_key_tag.split()[0] == "mine"
        assert "treadle" in torch.compiler.config.cache_key_tag
    assert "treadle" not in torch.compiler.config.cache_key_tag


def test_graphs_are_not_kept_unless_they_are_asked_for() -> None:
    assert not caches.are_asked_for()
    with config.patch(bundled_autograd_cache=True):
        assert caches.are_asked_for()
