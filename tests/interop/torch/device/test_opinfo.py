"""Some of PyTorch's records of operators on the host; `make opinfo-device` runs all."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's records need it")

from tests.interop.torch.device.opinfo.__main__ import ask, known, problems_of

pytestmark = pytest.mark.torch_device


def test_every_fifteenth_record_is_right() -> None:
    listed = known()
    found = dict(ask(step=15, samples=2))
    problems = {n: problems_of(f) for n, f in found.items() if n not in listed and problems_of(f)}
    assert not problems
    assert sum(bool(f.get("samples")) for f in found.values()) >= 40
    assert sum(f.get("backward") == "equal" for f in found.values()) >= 30


def test_what_is_listed_as_different_is() -> None:
    assert problems_of(dict(ask(["tensor_split"], samples=1))["tensor_split"])
