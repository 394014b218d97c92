"""Device names, the default device, placement, and memory figures, on a machine without a GPU.

What depends on the state of a fresh process runs in one of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.backends.plugins import logged

import treadle as mge
import treadle.functional as F
from treadle import device as D
from treadle.autodiff import GradManager
from treadle.base.errors import DeviceError
from treadle.engine.devices import names as devices
from treadle.runtime.ahead import AHEAD, Ahead

NO_GPU = devices.device_count("gpu") == 0
needs_no_gpu = pytest.mark.skipif(not NO_GPU, reason="asserts what happens without a GPU")


@pytest.fixture(autouse=True)
def keep_the_default() -> Iterator[None]:
    before = mge.get_default_device()
    yield
    mge.set_default_device(before)


def fresh(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code after `import treadle as mge` in a new process."""
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_DEFAULT_DEVICE")}
    return subprocess.run(
        [sys.executable, "-c", "import treadle as mge\n" + code],
        env=kept | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


# -- the default device ------------------------------------------------------------------------


@needs_no_gpu
@pytest.mark.parametrize("how", ["call", "variable", "unnamed"])
def test_a_fresh_process_says_xpux_and_gives_one_notice_to_those_who_named_it(how: str) -> None:
    code = (
        "print(mge.get_default_device())\n"
        "import sys; print('made', file=sys.stderr)\n"
        "a = mge.tensor([1.0]); b = mge.tensor([2.0]); a + b\n"
        "print(a.device, repr(a.device), a)\n"
    )
    if how == "call":
        code = "mge.set_default_device()\n" + code + "mge.set_default_device(); mge.tensor([3.0])"
    done = fresh(code, **({"MGE_DEFAULT_DEVICE": "xpux"} if how == "variable" else {}))
    assert done.stdout.splitlines() == [
        "xpux",
        'xpux:0 CompNode("cpu0:0" from "xpux:0") Tensor([1.], device=xpux:0)',
    ]
    before, after = done.stderr.split("made\n")
    assert before == "", "nothing is said before the first tensor"
    if how == "unnamed":
        assert after == "", "who asked for no GPU does not hear that there is none"
    else:
        assert after.count("CUDA driver") == 1 and len(after.splitlines()) == 1
        assert "CPU mode" in after and "set_default_device('cpux')" in after and "docs/" in after


@pytest.mark.parametrize("how", ["call", "variable", "argument"])
def test_no_notice_where_a_cpu_was_asked_for(how: str) -> None:
    start = "mge.set_default_device('cpux')\n" if how == "call" else ""
    make = "mge.tensor([1.0], device='cpu0')" if how == "argument" else "mge.tensor([1.0])"
    variables = {"MGE_DEFAULT_DEVICE": "cpux"} if how == "variable" else {}
    done = fresh(f"{start}print({make}.device, mge.get_default_device())", **variables)
    assert done.stderr == ""
    named = {"call": "cpux:0 cpux", "variable": "cpux:0 cpux", "argument": "cpu0:0 xpux"}
    assert done.stdout.strip() == named[how]


def test_the_environment_names_the_default_and_a_call_overrides_it() -> None:
    code = "print(mge.get_default_device()); mge.set_default_device('cpu2')\n"
    code += "print(mge.get_default_device(), mge.tensor(1).device)"
    for variable in ("MGE_DEFAULT_DEVICE", "TREADLE_DEFAULT_DEVICE"):
        done = fresh(code, **{variable: "multithread2"})
        assert done.stdout.split() == ["multithread2", "cpu2", "cpu2:0"]
    assert fresh("print(mge.get_default_device())", MGE_DEFAULT_DEVICE="gpux").stdout == "gpux\n"


def test_an_invalid_variable_is_named() -> None:
    done = fresh("mge.tensor(1)", MGE_DEFAULT_DEVICE="cuda0")
    assert done.returncode != 0
    assert "MGE_DEFAULT_DEVICE: 'cuda0' is not a device name" in done.stderr
    assert "valid: xpux, cpux" in done.stderr


def test_the_logical_name_is_kept_and_existing_tensors_stay() -> None:
    old = mge.tensor([1.0], device="cpu3")
    mge.set_default_device("cpux")
    assert mge.get_default_device() == D.get_default_device() == "cpux"
    a = mge.Tensor([1.0, 2.0, 3.0])
    assert repr(a.device) == 'CompNode("cpu0:0" from "cpux:0")'
    assert str(a) == "Tensor([1. 2. 3.], device=cpux:0)"
    assert old.device == "cpu3"
    mge.set_default_device()
    assert mge.get_default_device() == "xpux"


@needs_no_gpu
def test_a_missing_gpu_is_never_silently_a_cpu() -> None:
    with logged() as lines:
        mge.set_default_device("gpux")
        mge.set_default_device("cpu7")
        mge.set_default_device("gpux")
    assert len(lines) == 2 and all("is gpux, and 0 of this kind exist: " in line for line in lines)
    assert mge.get_default_device() == "gpux"
    with pytest.raises(DeviceError, match=r"no device gpux?0?: 0 of this kind exist"):
        mge.tensor([1.0])
    mge.set_default_device("xpux")
    b = mge.tensor([1.0])
    for name in ("gpu0", "gpux", "gpu1"):
        with pytest.raises(RuntimeError, match="0 of this kind exist"):
            b.to(name)
        with pytest.raises(ValueError, match="0 of this kind exist"):
            mge.tensor([1.0], device=name)
    assert (b + 1).item() == 2


# -- names -------------------------------------------------------------------------------------

BAD = ["cpu", "cpu:x", "cuda0", "", "x", "cpu-1", "cpu0:", "cpu0:x", "CPU0", "cpu 0", "cpu0:0:0"]


@pytest.mark.parametrize("name", BAD)
def test_malformed_names_are_value_errors_that_list_the_forms(name: str) -> None:
    for use in (
        mge.set_default_device,
        mge.tensor([1.0]).to,
        lambda n: mge.tensor([1.0], device=n),
        lambda n: F.zeros(2, device=n),
        lambda n: F.copy(mge.tensor([1.0]), n),
        D.get_mem_status_bytes,
    ):
        with pytest.raises(ValueError, match=r"is not a device name[^$]*valid: xpux, cpux, gpux"):
            use(name)
    assert not D._valid_device(name)


@pytest.mark.parametrize(
    ("name", "shown", "physical"),
    [
        ("xpux", "xpux:0", "cpu0:0"),
        ("xpu0", "xpu0:0", "cpu0:0"),
        ("cpux", "cpux:0", "cpu0:0"),
        ("cpu0", "cpu0:0", "cpu0:0"),
        ("cpu1", "cpu1:0", "cpu1:0"),
        ("cpu01", "cpu1:0", "cpu1:0"),
        ("cpu0:1", "cpu0:1", "cpu0:1"),
        ("xpux:2", "xpux:2", "cpu0:2"),
        ("multithread2", "multithread2:0", "multithread2:0"),
    ],
)
@needs_no_gpu
def test_logical_and_physical_names(name: str, shown: str, physical: str) -> None:
    node = mge.tensor([1.0], device=name).device
    assert (str(node), node.logical_name, node.physical_name) == (shown, shown, physical)
    assert repr(node) == f'CompNode("{physical}" from "{shown}")'
    assert D._valid_device(name)
    assert mge.tensor([1.0]).to(name).device is node, "one object per logical name"
    assert mge.tensor([1.0], device=node).device is node


def test_equality_with_text_adds_the_stream_and_compares_logical_names() -> None:
    node = mge.tensor(1.0, device="xpux").device
    assert node == "xpux" and node == "xpux:0" and node != "xpux:1"
    assert node != "cpu0" and node != mge.tensor(1.0, device="cpu0").device
    assert node == mge.tensor(2.0, device="xpux:0").device and len({node, node}) == 1
    assert node.physical_locator == ("cpu", 0, 0) or not NO_GPU


# -- placement ---------------------------------------------------------------------------------


def test_to_copies_and_leaves_the_source() -> None:
    a = mge.tensor([1.0, 2.0], device="cpu0")
    b = a.to("cpu1")
    assert (str(a.device), str(b.device)) == ("cpu0:0", "cpu1:0") and b.tolist() == [1, 2]
    b += 1
    assert a.tolist() == [1, 2] and str(b.device) == "cpu1:0", "results stay on their device"
    same = a.to("cpu0")
    same += 1
    assert a.tolist() == [1, 2]


def test_copy_is_differentiable_and_the_gradient_returns() -> None:
    a = mge.tensor([1.0, 2.0], device="cpu0")
    manager = GradManager().attach(a)
    with manager:
        there = F.copy(a, device="cpu1")
        assert str(there.device) == "cpu1:0"
        manager.backward((there * there).to("cpu2").sum())
    assert a.grad.tolist() == [2, 4] and str(a.grad.device) == "cpu0:0"
    plain = F.copy(a)
    assert plain is not a and plain.device == a.device and plain.tolist() == a.tolist()


def test_mixing_physical_devices_names_both_and_the_cure() -> None:
    a, b = mge.tensor([1.0], device="cpu0"), mge.tensor([1.0], device="cpu1")
    for mixed in (
        lambda: a + b,
        lambda: b - a,
        lambda: a.astype("float16") * b,
        lambda: F.matmul(a, b),
        lambda: F.where(a > 0, b, b),
        lambda: a[mge.tensor([0], device="cpu1")],
    ):
        with pytest.raises(DeviceError, match=r"different devices") as caught:
            mixed()
        text = str(caught.value)
        assert "cpu0:0" in text and "cpu1:0" in text and ".to('cpu" in text
    with pytest.raises(ValueError, match=r"ambiguous device: cpu0:0, cpu1:0"):
        F.concat([a, b])
    joined = F.concat([a, b], device="cpu1")
    assert str(joined.device) == "cpu1:0" and joined.tolist() == [1, 1]
    assert (a.to("cpu1") + b).item() == 2


@needs_no_gpu
def test_names_of_one_physical_device_mix() -> None:
    a, b = mge.tensor([1.0], device="xpux"), mge.tensor([2.0], device="cpu0")
    assert (a + b).item() == 3 and str((a + b).device) == "xpux:0"
    assert str((b + a).device) == "cpu0:0", "the first operand's name wins"
    assert F.concat([a, b, mge.tensor([3.0], device="cpu0:1")]).tolist() == [1, 2, 3]


def test_creation_takes_a_device() -> None:
    for made in (
        F.zeros(2, device="cpu1"),
        F.arange(3, device="cpu1"),
        F.eye(2, device="cpu1"),
        F.linspace(0, 1, 3, device="cpu1"),
        F.full(2, 1, device="cpu1"),
        F.zeros_like(mge.tensor([1.0], device="cpu1")),
        mge.tensor([1.0], device="cpu1") + np.ones(1, "float32"),
    ):
        assert made.device == "cpu1"


# -- the Device page ---------------------------------------------------------------------------


def test_counts_and_availability() -> None:
    assert D.get_device_count("cpu") == 1 and D.get_device_count("xpu") >= 1
    for kind, available in (
        ("gpu", D.is_cuda_available()),
        ("rocm", D.is_rocm_available()),
        ("cambricon", D.is_cambricon_available()),
        ("atlas", D.is_atlas_available()),
    ):
        assert available == (D.get_device_count(kind) > 0)
    with pytest.raises(AssertionError, match="cpu, gpu, xpu"):
        D.get_device_count("tpu")
    assert D.what_is_xpu() == "cpu" or not NO_GPU


def test_memory_figures_follow_live_tensors() -> None:
    total, free = D.get_mem_status_bytes("cpu0")
    assert total >= free > 0 and D.get_mem_status_bytes() == pytest.approx((total, free), rel=0.5)
    before = D.get_allocated_memory("cpu7")
    assert before == D.get_reserved_memory("cpu7")
    D.reset_max_memory_stats("cpu7")
    kept = mge.tensor(np.ones(1000, "float32"), device="cpu7")
    alias = mge.tensor(kept)
    assert D.get_allocated_memory("cpu7") == before + 4000, "shared memory counts once"
    del kept, alias
    assert D.get_allocated_memory("cpu7") == before
    assert D.get_max_allocated_memory("cpu7") >= before + 4000
    assert D.get_max_reserved_memory("cpu7") >= before + 4000
    D.coalesce_free_memory()


def test_the_peak_of_the_host_is_known_though_nobody_asked_in_between() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        pytest.skip("this system does not tell or forget a process's peak of memory")
    D.reset_max_memory_stats("cpu7")
    before, large = D.get_allocated_memory("cpu7"), 1 << 26
    mge.tensor(np.ones(large // 4, "float32"), device="cpu7").sum().item()
    after = D.get_allocated_memory("cpu7")
    assert after < before + large // 4
    for _ in range(2):
        assert D.get_max_allocated_memory("cpu7") >= before + large
    D.reset_max_memory_stats("cpu7")
    assert after <= D.get_max_allocated_memory("cpu7") < before + large // 2


def test_the_peak_never_falls_before_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's other memory grows while the peak stays: that took bytes off the figure."""
    monkeypatch.setattr(D, "_resident", lambda: (1 << 30, 1 << 30))
    D.reset_max_memory_stats("cpu7")
    monkeypatch.setattr(D, "_resident", lambda: (3 << 30, 1 << 30))
    first = D.get_max_allocated_memory("cpu7")
    assert first >= 2 << 30
    kept = mge.tensor(np.ones(1000, "float32"), device="cpu7")
    monkeypatch.setattr(D, "_resident", lambda: (3 << 30, 2 << 30))
    assert D.get_max_allocated_memory("cpu7") >= first
    del kept
    assert D.get_max_allocated_memory("cpu7") >= first
    D.reset_max_memory_stats("cpu7")


def test_without_a_system_that_tells_the_peak_is_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(D, "_resident", lambda: (0, 0))
    D.reset_max_memory_stats("cpu7")
    before = D.get_allocated_memory("cpu7")
    kept = mge.tensor(np.ones(1000, "float32"), device="cpu7")
    assert D.get_allocated_memory("cpu7") == before + 4000
    del kept
    assert D.get_max_allocated_memory("cpu7") == before + 4000
    D.reset_max_memory_stats("cpu7")
    assert D.get_max_allocated_memory("cpu7") == before
    # A peak from before the reset, which the system would not forget.
    monkeypatch.setattr(D, "_resident", lambda: (1 << 40, 1 << 20))
    D.reset_max_memory_stats("cpu7")
    assert D.get_max_allocated_memory("cpu7") == before


def test_release_returns_the_memory_held_for_backward() -> None:
    a = mge.tensor(np.ones(1000, "float32"), device="cpu7")
    a * 2  # the constant is kept for reuse
    before = D.get_allocated_memory("cpu7")
    manager = GradManager().attach(a)
    manager.record()
    y = F.exp(a * 2).sum()
    assert D.get_allocated_memory("cpu7") > before + 4000, "what backward needs is kept"
    manager.release()
    del y
    assert D.get_allocated_memory("cpu7") == before


def test_allocator_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AHEAD, "gpu", Ahead())  # It goes with the test.
    D.set_prealloc_config(alignment=256, min_req=1 << 20, growth_factor=1.5)
    assert AHEAD["gpu"] == Ahead(256, 1 << 20, 0, 1.5)
    for wrong in ((0,), (3,), (1, -1), (1, 0, -1), (1, 0, 0, 0.5)):
        with pytest.raises(ValueError, match="alignment must be a power of two"):
            D.set_prealloc_config(*wrong)


def test_requests_grow_with_what_is_held() -> None:
    assert Ahead().more(100, 0) == 0  # MegEngine's default: nothing beyond what is wanted.
    ahead = Ahead(alignment=256, least=1000, over=4096, growth=2.0)
    assert ahead.more(100, 0) == 1024 - 100
    assert ahead.more(100, 1500) == 3072 - 100
    assert ahead.more(100, 1 << 20) == 4352 - 100
    assert ahead.more(5000, 0) == 5120 - 5000


@needs_no_gpu
def test_gpu_getters_without_a_gpu() -> None:
    for version in (
        D.get_cuda_version,
        D.get_cudnn_version,
        D.get_tensorrt_version,
        D.get_cuda_driver_version,
    ):
        assert version() == 0
    for ask in (D.get_cuda_compute_capability, D.get_cuda_device_property):
        with pytest.raises(DeviceError, match="gpu0: 0 of this kind exist"):
            ask(0)


def test_every_function_is_exported_at_the_top_too() -> None:
    here_only = {
        "DeviceProperties",
        "DeviceType",
        "ops",
        "reset",
        "synchronize",
        "synchronous",
        "what_is_xpu",
    }
    for name in set(D.__all__) - here_only:
        assert getattr(mge, name) is getattr(D, name)
        assert getattr(D, name).__doc__
