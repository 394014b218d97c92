"""The gate of the zoo: what it takes for a difference, and that it outlives its workers."""

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")

from tests.zoo import __main__ as command  # noqa: E402
from tests.zoo import ways  # noqa: E402

import treadle as mge  # noqa: E402
from treadle.conformance.answering_process import AnsweringProcess  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def test_every_way_is_compared_and_a_wrong_one_is_named() -> None:
    torch.manual_seed(0)
    found = ways.torch_ways(Net(), (torch.randn(4, 3),))
    assert set(found["gaps"]) == set(command.WAYS) - {"sizes"} and found["left"] == []
    assert command.problem_of(found, 1e-4) == ""
    found["gaps"]["file"] = float("nan")
    assert command.problem_of(found, 1e-4) == "differs: file nan"

    def slightly_off(x):
        return mge.functional.relu(x) * 1.001

    x = np.linspace(-1, 1, 8, dtype="float32")
    wrong = ways.ways_of(slightly_off, [x], lambda: np.maximum(x, 0))
    assert command.problem_of(wrong, 1e-4) == "differs: eager 1e-03, compiled 1e-03, file 1e-03"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_count(bad: float) -> None:
    right = np.array([1.0, 2.0], np.float32)
    wrong = np.array([1.0, bad], np.float32)
    assert not ways.gap([wrong], [right]) <= 1
    assert not ways.gap([right], [wrong]) <= 1
    assert ways.gap([wrong], [wrong]) == 0
    assert ways.gap([right[:1]], [right]) == float("inf")


WORKER = """
import os, sys, time
print('{"names": ["die", "hang", "live"]}', flush=True)
for line in sys.stdin:
    if line == "die\\n":
        os._exit(3)
    time.sleep(600 if line == "hang\\n" else 0)
    print('{"gaps": {"eager": 0.0}}', flush=True)
"""


def test_a_worker_that_ends_or_hangs_is_replaced() -> None:
    worker = AnsweringProcess(sys.executable, "-c", WORKER)
    assert worker.start()["names"] == ["die", "hang", "live"]
    assert worker.ask("die", 600)["lost"] == "the process ended with 3"
    assert command.problem_of(worker.ask("live", 600), 1e-4) == ""
    assert worker.process is not None
    worker.process.kill()
    worker.process.wait()
    assert worker.ask("live", 600)["lost"] == "the process ended with -9"
    worker.start()
    assert worker.ask("hang", 0.5)["lost"] == "no answer in 0 s"
    assert command.problem_of(worker.ask("live", 600), 1e-4) == ""
    worker.stop()
