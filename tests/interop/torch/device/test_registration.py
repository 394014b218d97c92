"""Registering: once, politely, and with one message where PyTorch has moved."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from treadle.backends import registry  # noqa: E402
from treadle.base.errors import LoadError  # noqa: E402
from treadle.engine.devices import names  # noqa: E402
from treadle.interop.torch.device import private, register  # noqa: E402

pytestmark = pytest.mark.torch_device


@pytest.mark.parametrize("path", private.NAMES)
def test_a_name_that_moved_is_one_message(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    private.check()
    holder, name = path.rpartition(".")[::2]
    owner: Any = private.found(holder)
    if not isinstance(owner, type) and hasattr(owner, "__dict__"):
        monkeypatch.delattr(owner, name)
        with pytest.raises(LoadError, match=rf"has no {path}"):
            private.check()
    else:  # a class of C++ or one that everything else needs
        with pytest.raises(LoadError, match=rf"has no {path}_moved"):
            private.found(f"{path}_moved")


def test_registering_again_changes_nothing() -> None:
    before = torch.treadle
    register()
    assert torch.treadle is before


def _run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_treadle_alone_registers_nothing() -> None:
    program = "import torch, treadle, treadle.interop.torch; print(hasattr(torch, 'treadle'))"
    assert _run(program).stdout.strip() == "False"


def test_another_package_keeps_its_place() -> None:
    program = (
        "import torch; torch.utils.rename_privateuse1_backend('npu')\n"
        "import sys, types; m = sys.modules['torch_npu'] = types.ModuleType('torch_npu')\n"
        "torch._register_device_module('npu', m)\n"
        "import treadle.torch"
    )
    done = _run(program)
    assert done.returncode == 1
    assert "already has the device 'npu'" in done.stderr and "import torch_npu" in done.stderr


def test_nothing_of_pytorch_is_replaced() -> None:
    program = """
import sys, torch, torch.nn, torch.optim, torch.serialization, torch.utils.backend_registration
import treadle.interop.torch
kept = {n: dict(vars(m)) for n, m in list(sys.modules.items()) if n.partition(".")[0] == "torch"}
import treadle.torch
made = {"treadle", "is_treadle"}
told = {"_privateuse1_backend_name", "SKIP_DIRS_RE"}  # the name, files that are never captured
for name, before in kept.items():
    now = vars(sys.modules[name])
    for key, value in before.items():
        if now.get(key, None) is not value and key not in told:
            print(name, key)
for cls in (torch.Tensor, torch.nn.Module, torch.UntypedStorage):
    for key in vars(cls):
        if "treadle" in key and key not in made:
            print(cls, key)
"""
    done = _run(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [], done.stdout


def test_a_forked_child_may_use_the_host() -> None:
    program = """
import os, torch, treadle.torch
x = torch.ones(3, device="treadle:0")
if not os.fork():
    os._exit(int((x + 1).sum().item() != 6))
print(os.waitpid(-1, 0)[1])
"""
    assert _run(program).stdout.strip() == "0"


@pytest.mark.parametrize("change", [lambda: names.reset("toy1"), registry.rescan])
def test_calls_outlive_a_device_that_was_closed(
    change: Callable[[], None], devices: dict[str, str]
) -> None:
    """Constants of calls that are kept lie on the device: they go with it."""

    def call() -> torch.Tensor:
        x = torch.ones(3).to(devices["toy1"])
        return (x * 2.5 + 0.25).clamp(0.5, 2.0).cpu()

    before = call()
    change()
    assert torch.equal(call(), before)
