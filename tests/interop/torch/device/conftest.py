"""PyTorch with Treadle's devices: the host, and the toy of the tutorial.

The marker `torch_device` keeps these tests in processes of their own.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOY = Path(__file__).resolve().parents[4] / "plugins" / "treadle-toy"
_METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: treadle-toy\nVersion: 0\n",
    "entry_points.txt": "[treadle.backends]\ntoy = treadle_toy:backend\n",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.torch_device)


@pytest.fixture(scope="session", autouse=True)
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Devices of PyTorch by Treadle's names."""
    from treadle.backends import registry

    site = tmp_path_factory.mktemp("site")
    (site / "treadle_toy-0.dist-info").mkdir()
    for name, text in _METADATA.items():
        (site / "treadle_toy-0.dist-info" / name).write_text(text)
    sys.path[:0] = [str(site), str(TOY)]
    registry.rescan()
    import torch

    import treadle.torch  # noqa: F401

    count = torch.treadle.device_count()
    yield {torch.treadle.get_device_name(i): f"treadle:{i}" for i in range(count)}
    sys.path.remove(str(site))
    sys.path.remove(str(TOY))


@pytest.fixture(params=["cpu0", "toy1"])
def device(request: pytest.FixtureRequest, devices: dict[str, str]) -> Iterator[str]:
    """A device on the host's memory, and one with memory of its own."""
    import treadle

    with treadle.fallback("silent"):
        yield devices[request.param]
