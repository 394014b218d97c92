"""Finding, loading and refusing plug-ins."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.backends.plugins import Plugins, logged
from tests.backends.toy_backend import Toy, ToyDevice, kernel

import treadle as mge
from treadle.backends import registry
from treadle.backends.api import Availability, Backend, Device, Engine, Kernel, no, yes
from treadle.base.errors import DeviceError, LoadError

TOY = "from tests.backends.toy_backend import Toy\n"


def test_the_reference_engine_comes_through_the_same_door() -> None:
    (row,) = [r for r in mge.backends() if r["name"] == "reference"]
    assert row["distribution"] == "treadle" and row["state"] == "loaded"
    assert isinstance(registry.load("reference"), Engine)
    asked = [engine for engine in registry.engines("cpu") if engine.priority >= 0]
    assert asked[-1].name == "reference", "what it does not run, nobody does"


def test_a_plug_in_is_found_by_its_entry_point(plugins: Plugins) -> None:
    plugins.write("toy", TOY + "backend = Toy()\n")
    assert plugins.row("toy") == {
        "name": "toy",
        "distribution": "treadle-toy",
        "version": "1.5",
        "protocol": "1.0",
        "state": "loaded",
        "devices": "2",
        "kinds": "toy",
        "tiers": "devices",
        "kernels": "0",
        "ops": "0",
        "passes": "",
        "detail": "made of NumPy",
    }
    assert mge.get_device_count("toy") == 2
    assert mge.tensor([1.0], device="toy1").device == "toy1"


def test_nothing_is_imported_before_it_is_used(plugins: Plugins) -> None:
    plugins.write("toy", TOY + "backend = Toy()\n")
    plugins.write("other", "raise RuntimeError('imported without need')\n")
    assert set(registry.entries()) >= {"toy", "other"}
    assert "plugin_treadle_toy" not in sys.modules
    # A device kind that an entry point bears the name of needs no other import.
    assert registry.for_kind("toy") is not None
    assert "plugin_treadle_toy" in sys.modules
    assert registry.entries()["other"].state == "found"


def test_two_plug_ins_at_once(plugins: Plugins) -> None:
    plugins.toy("toy")
    plugins.toy("pet", count=1)
    with mge.fallback("silent"):
        a = mge.tensor([1.0, 2.0], device="toy1") * 2
        b = mge.tensor([1.0, 2.0], device="pet0") * 3
        assert (a.device, b.device) == ("toy1", "pet0")
        assert (a.to("pet0") + b).tolist() == [5.0, 10.0]
    assert mge.get_device_count("pet") == 1


# -- broken ones -------------------------------------------------------------------------------

BROKEN = {
    "import": ("import no_such_module_here\n", "No module named 'no_such_module_here'"),
    "exit": ("raise SystemExit(3)\n", "3"),
    "syntax": ("def :\n", "invalid syntax"),
    "missing": ("other = 1\n", "has no attribute 'backend'"),
    "class": (TOY + "backend = Toy\n", "names the class Toy; name an instance"),
    "nothing": ("backend = object()\n", "no attribute 'name'; it has no attribute 'protocol'"),
    "protocol": (
        TOY + "backend = Toy()\nbackend.protocol = (2, 0)\n",
        "speaks protocol 2, this Treadle speaks 1",
    ),
    "number": (TOY + "backend = Toy()\nbackend.protocol = 1\n", "a pair of ints"),
    "probe": (TOY + "backend = Toy()\nbackend.probe = lambda: 1 / 0\n", "division by zero"),
    "answer": (TOY + "backend = Toy()\nbackend.probe = lambda: True\n", "returned bool"),
    "text": (TOY + "backend = Toy()\nbackend.device_kinds = 'toy'\n", "must be a tuple"),
    "kind": (TOY + "backend = Toy()\nbackend.device_kinds = ('Toy!',)\n", "'Toy!' is not lower"),
    "host": (TOY + "backend = Toy()\nbackend.device_kinds = ('cpu',)\n", "the framework's own"),
    "kernels": (TOY + "backend = Toy()\nbackend.kernels = lambda: 1 / 0\n", "division by zero"),
    "function": (
        TOY + "backend = Toy()\nbackend.kernels = lambda: [max]\n",
        "kernels() must give Kernel objects, not builtin_function_or_method max; see",
    ),
    "mapping": (
        TOY + "backend = Toy()\nbackend.kernels = lambda: {'add': max}\n",
        "kernels() returned an object of class dict; see treadle.backends.api.Kernel",
    ),
    "list": (
        TOY + "backend = Toy()\nbackend.kernels = []\n",
        "kernels is a list; it must be a method that returns it",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plug_in_is_shown_and_hurts_nobody(case: str, plugins: Plugins) -> None:
    source, message = BROKEN[case]
    plugins.write("broken", source)
    plugins.toy("toy")
    row = plugins.row("broken")
    assert row["state"] == "failed" and message in row["detail"]
    assert plugins.row("toy")["state"] == "loaded"
    assert (mge.tensor([1.0]) + 1).tolist() == [2.0]
    with mge.fallback("silent"):
        assert (mge.tensor([1.0], device="toy0") + 1).tolist() == [2.0]
    with pytest.raises(LoadError, match="could not be loaded") as caught:
        registry.load("broken")
    assert caught.value.__cause__ is registry.entries()["broken"].error
    with pytest.raises(DeviceError, match=r"the backend broken failed: (?!backend)") as named:
        mge.tensor([1.0], device="broken0")
    assert named.value.__cause__ is not None


def test_reasons_have_known_codes() -> None:
    with pytest.raises(
        ValueError, match=r"no\('dtypes', ...\): the reason must be one of op, dtype,"
    ):
        no("dtypes", "float32 only")  # type: ignore[arg-type]


def test_memory_that_is_none_is_refused_at_once(plugins: Plugins) -> None:
    class Forgets(ToyDevice):
        def alloc(self, nbytes: int, /) -> Any:
            super().alloc(nbytes)

    plugins.toy("toy", device=Forgets)
    with pytest.raises(DeviceError, match="alloc failed: TypeError: it returned None") as caught:
        mge.tensor([1.0], device="toy0")._data.block
    assert "free" not in str(caught.value)


def test_names_of_devices_are_suggested(plugins: Plugins) -> None:
    plugins.toy("abacus")
    for wrong, near in (("abacis1", "abacus1"), ("abacus", "abacus0"), ("abakus:0", "abacus0")):
        with pytest.raises(DeviceError, match="is not a device name") as caught:
            mge.tensor([1.0], device=wrong)
        assert f"did you mean '{near}'?" in str(caught.value)
        assert "multithread2, abacus0, abacus1, each" in str(caught.value)
    with pytest.raises(DeviceError, match="abacus7: 2 of this kind exist\n") as missing:
        mge.tensor([1.0], device="abacus7")
    assert "hint: abacus0 and abacus1 exist" in str(missing.value)
    assert "made of NumPy" not in str(missing.value)


def test_a_broken_plug_in_does_not_break_the_import(plugins: Plugins, tmp_path: Path) -> None:
    plugins.write("broken", "raise SystemExit(3)\n")
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    code = "import treadle as mge; print(mge.tensor([1.0]) + 1)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path, "TREADLE_DEFAULT_DEVICE": "cpux"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout, done.stderr) == ("Tensor([2.], device=cpux:0)\n", "")


def test_damaged_metadata_spoils_its_own_plug_in_only(plugins: Plugins, tmp_path: Path) -> None:
    plugins.toy("toy")
    (tmp_path / "site" / "odd-1.0.dist-info").mkdir()
    (tmp_path / "site" / "odd-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe[x")
    with logged() as lines:
        registry.rescan()
        assert plugins.row("toy")["state"] == "loaded"
    assert "cannot be read" in lines[0]


def test_two_distributions_of_one_name_are_both_out(plugins: Plugins) -> None:
    plugins.write("toy", TOY + "backend = Toy()\n", distribution="first-toy")
    plugins.write("toy", TOY + "backend = Toy()\n", distribution="second-toy")
    row = plugins.row("toy")
    assert row["state"] == "failed" and "first-toy and second-toy" in row["detail"]
    with pytest.raises(DeviceError, match="two distributions"):
        mge.tensor([1.0], device="toy0")


def test_a_built_in_backend_is_not_replaced(plugins: Plugins) -> None:
    plugins.write("reference", TOY + "backend = Toy()\n", distribution="pretender")
    row = plugins.row("reference")
    assert row["state"] == "loaded" and row["distribution"] == "treadle"
    assert "pretender" in row["detail"] and "ignored" in row["detail"]


def test_a_kernel_for_an_unknown_op_is_refused_with_near_names(plugins: Plugins) -> None:
    plugins.toy("toy", kernels=[kernel("adds", lambda x: x), kernel("add", lambda x, y: x + y)])
    row = plugins.row("toy")
    assert row["state"] == "failed" and "adds (did you mean add?)" in row["detail"]
    with pytest.raises(LoadError, match=r"for ops that do not exist: adds \(did you mean add"):
        registry.load("toy")


@pytest.mark.parametrize(("op", "protocol"), [("adds", (1, 99)), ("elsewhere.adds", (1, 0))])
def test_ops_of_later_versions_and_other_packages_are_a_remark(
    plugins: Plugins, op: str, protocol: tuple[int, int]
) -> None:
    plugins.toy("toy", kernels=[kernel(op, lambda x: x)]).protocol = protocol
    with logged() as lines:
        row = plugins.row("toy")
    assert row["state"] == "loaded" and row["kernels"] == "1"
    assert f"ops that do not exist: {op}" in row["detail"] and op in lines[0]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Kernel("add", lambda device, outs: None), "run(device, outs, ins, attributes, stream)"),
        (Kernel("add", print, supports=lambda op: yes()), "supports(op, types)"),
        (Kernel("add", "add.cu"), "'add.cu', which cannot be called"),  # type: ignore[arg-type]
    ],
)
def test_a_kernel_that_takes_other_arguments_is_refused(
    plugins: Plugins, wrong: Kernel, told: str
) -> None:
    plugins.toy(kernels=[wrong])
    row = plugins.row("toy")
    assert row["state"] == "failed" and "kernel for add" in row["detail"]
    assert told in row["detail"]


# -- choosing ----------------------------------------------------------------------------------


def test_the_allow_list(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_BACKENDS", "pet, ape")
    plugins.toy("toy")
    plugins.toy("pet")
    assert plugins.row("toy")["state"] == "disabled"
    assert plugins.row("pet")["state"] == "loaded"
    assert "plugin_treadle_toy" not in sys.modules
    with pytest.raises(DeviceError, match="the backend toy is disabled: not in TREADLE_BACKENDS"):
        mge.tensor([1.0], device="toy0")
    with pytest.raises(DeviceError, match="'toy' is disabled"):
        registry.load("toy")


def test_off_allows_the_built_in_ones_only(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_BACKENDS", "off")
    plugins.toy("toy", priority=9)
    assert plugins.row("toy")["state"] == "disabled"
    assert mge.device.what_is_xpu() == "cpu"
    assert (mge.tensor([1.0], device="cpux") + 1).tolist() == [2.0]


def test_an_unknown_backend_lists_the_known(plugins: Plugins) -> None:
    plugins.toy("toy")
    with pytest.raises(DeviceError, match="no backend called 'tiy'") as caught:
        registry.load("tiy")
    assert "reference, toy" in str(caught.value)


def test_the_better_of_two_backends_serves_a_kind(plugins: Plugins) -> None:
    for name, count, priority in (("absent", 0, 9), ("slow", 1, 1), ("fast", 1, 5)):
        backend = Toy(name, count=count, priority=priority)
        backend.device_kinds = ("gadget",)
        plugins.offer(name, backend)
    found = registry.for_kind("gadget")
    assert found is not None and found.name == "fast"


def test_all_names_of_a_kind_are_one_place(plugins: Plugins) -> None:
    backend = Toy("toy")
    backend.device_kinds = ("toy", "doll")
    plugins.offer("toy", backend)
    a, b = mge.tensor([1.0], device="toy0"), mge.tensor([2.0], device="doll0")
    with mge.fallback("silent"):
        assert (a + b).tolist() == [3.0]
    assert b.device.physical_name == "toy0:0" and len(backend.opened) == 1


def test_rescanning_forgets_plug_ins_and_keeps_host_tensors(plugins: Plugins) -> None:
    kept = mge.tensor([1.0], device="cpu3")
    toy = plugins.toy("toy")
    lost = mge.tensor([1.0], device="toy0")
    with mge.fallback("silent"):
        lost = lost + 1
    lost._data.block
    plugins.toy("pet")
    assert toy.opened[0].closed and toy.opened[0].allocs == toy.opened[0].frees == 1
    assert (kept + mge.tensor([1.0], device="cpu3")).tolist() == [2.0]
    with pytest.raises(DeviceError, match="toy0: the device was closed"):
        lost._data.device.alloc(8)


def test_two_threads_load_a_plug_in_once(plugins: Plugins) -> None:
    source = (
        "import time\nimport tests.backends.plugins as p\n"
        "p.OFFERED['times'] = p.OFFERED.get('times', 0) + 1\ntime.sleep(0.05)\n"
    )
    plugins.write("toy", source + TOY + "backend = Toy()\n")
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(registry.for_kind("toy"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len({id(entry.backend) for entry in found}) == 1


def test_a_plug_in_may_use_tensors_while_it_is_imported(plugins: Plugins) -> None:
    source = "import treadle as mge\nassert (mge.tensor([1.0], device='cpux') * 2).item() == 2\n"
    plugins.write("toy", source + TOY + "backend = Toy()\n")
    assert plugins.row("toy")["state"] == "loaded"
    assert registry.entries()["toy"].error is None
    assert registry.engines("cpu") is registry.engines("cpu")


# -- which devices are seen, and what changes while a process runs ---------------------------------


def test_a_variable_says_which_devices_are_seen(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_TOY_VISIBLE_DEVICES", "1")
    toy = plugins.toy("toy")
    plugins.toy("pet")
    assert mge.get_device_count("toy") == 1 and mge.get_device_count("pet") == 2
    mge.tensor([1.0], device="toy0")
    assert list(toy.opened) == [1], "toy0 is the physical number 1"
    with pytest.raises(DeviceError, match="there is no device toy1: 1 of this kind exist"):
        mge.tensor([1.0], device="toy1")
    monkeypatch.setenv("TREADLE_TOY_VISIBLE_DEVICES", "1, 0")
    registry.rescan()
    mge.tensor([1.0], device="toy1")
    assert mge.get_device_count("toy") == 2 and list(toy.opened)[-1] == 0


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_no_devices_are_seen(
    hidden: str, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_TOY_VISIBLE_DEVICES", hidden)
    plugins.toy("toy", priority=9)
    assert mge.get_device_count("toy") == 0 and mge.device.what_is_xpu() == "cpu"
    with pytest.raises(DeviceError, match="there is no device toy0: 0 of this kind") as caught:
        mge.tensor([1.0], device="toy0")
    assert f"TREADLE_TOY_VISIBLE_DEVICES='{hidden}' hides all of them" in str(caught.value)


@pytest.mark.parametrize("wrong", ["2", "a", "0,0", "0,-1"])
def test_a_wrong_list_of_devices_is_refused(
    wrong: str, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_TOY_VISIBLE_DEVICES", wrong)
    plugins.toy("toy")
    row = plugins.row("toy")
    assert row["state"] == "failed" and "is not a list of different devices" in row["detail"]
    with pytest.raises(DeviceError, match="TREADLE_TOY_VISIBLE_DEVICES"):
        mge.tensor([1.0], device="toy0")


def test_a_package_that_goes_away_leaves_the_framework_intact(
    plugins: Plugins, tmp_path: Path
) -> None:
    plugins.toy("toy")
    with mge.fallback("silent"):
        assert (mge.tensor([1.0], device="toy0") + 1).item() == 2.0
    shutil.rmtree(tmp_path / "site" / "treadle_toy-1.5.dist-info")
    registry.rescan()
    assert "toy" not in registry.entries()
    with pytest.raises(DeviceError, match="'toy0' is not a device name"):
        mge.tensor([1.0], device="toy0")
    assert (mge.tensor([1.0], device="cpux") + 1).item() == 2.0


def test_files_that_were_left_behind_are_named(plugins: Plugins, tmp_path: Path) -> None:
    plugins.write("toy", TOY + "backend = Toy()\n")
    (tmp_path / "site" / "plugin_treadle_toy.py").unlink()
    registry.rescan()
    row = plugins.row("toy")
    assert row["state"] == "failed" and "No module named 'plugin_treadle_toy'" in row["detail"]
    assert "pip install --force-reinstall treadle-toy" in row["detail"]


def test_an_upgrade_under_a_running_process_is_noticed(plugins: Plugins, tmp_path: Path) -> None:
    plugins.toy("toy")
    assert plugins.row("toy")["detail"] == "made of NumPy"
    metadata = tmp_path / "site" / "treadle_toy-1.5.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: treadle-toy\nVersion: 2.0\n")
    registry.rescan()
    detail = plugins.row("toy")["detail"]
    assert "version 2.0 is installed, but this process runs 1.5" in detail


def test_two_plug_ins_with_kernels_run_in_one_program_and_change_nothing_else(
    plugins: Plugins,
) -> None:
    mge.explain("add", mge.tensor([1.0]), mge.tensor([1.0]))  # imports what is imported later on
    ours = [name for name in sys.modules if name.startswith("treadle.")]
    before = {name: vars(sys.modules[name]).copy() for name in ours}
    toy = plugins.toy("toy", kernels=[kernel("add", lambda x, y: x + y)])
    pet = plugins.toy("pet", kernels=[kernel("mul", lambda x, y: x * y)])
    a, b = mge.tensor([1.0, 2.0], device="toy0"), mge.tensor([3.0, 4.0], device="pet0")
    with mge.fallback("silent"):
        assert ((a + a).to("pet0") * b).tolist() == [6.0, 16.0]
    assert toy.opened[0].launches == pet.opened[0].launches == 1
    assert mge.explain("add", a, a).decisions[0].implementation == "toy"
    assert mge.explain("mul", b, b).decisions[0].implementation == "pet"
    for name, attributes in before.items():
        now = vars(sys.modules[name])
        submodules = {n for n in now if f"{name}.{n}" in sys.modules}
        assert set(now) - submodules == set(attributes) - submodules, name
        assert all(now[n] is value for n, value in attributes.items()), name


# -- the protocol's defaults -------------------------------------------------------------------


class Smallest(Backend):
    name, protocol, device_kinds = "small", (1, 0), ("small",)

    def probe(self) -> Availability:
        return Availability(True, count=1)

    def open(self, index: int, /) -> Device:
        return SmallestDevice()


class SmallestDevice(Device):
    def alloc(self, nbytes: int, /) -> bytearray:
        return bytearray(nbytes)

    def free(self, buffer: bytearray, /) -> None:
        buffer.clear()

    def copy_in(self, dst: bytearray, src: memoryview, stream: Any, /) -> None:
        dst[: src.nbytes] = src

    def copy_out(self, dst: memoryview, src: bytearray, stream: Any, /) -> None:
        dst[:] = src[: dst.nbytes]


def test_the_smallest_backend_runs(plugins: Plugins) -> None:
    plugins.offer("small", Smallest())
    with mge.fallback("silent"):
        x = mge.tensor([[1.0, 2.0]], device="small0")
        assert (x @ x.T).tolist() == [[5.0]]
    block = x._data.device.filled(7, 3)
    assert block.buffer == bytearray([7, 7, 7])
    assert mge.get_mem_status_bytes("small0") == (0, 0)


def test_what_has_no_default_must_be_written() -> None:
    class Lazy(Device):
        pass

    with pytest.raises(TypeError, match=r"alloc.*copy_in.*copy_out.*free"):
        Lazy()  # type: ignore[abstract]


def test_a_device_that_lacks_methods_is_refused_with_their_names(plugins: Plugins) -> None:
    class Half:
        alloc = free = copy_in = ToyDevice.alloc

    toy = plugins.toy("toy")
    toy.open = lambda index, /: Half()  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(
        DeviceError, match="of class Half without copy_out, fill, stream, memory, close"
    ):
        mge.tensor([1.0], device="toy0")


def test_a_device_that_cannot_be_opened(plugins: Plugins) -> None:
    toy = plugins.toy("toy")

    def fail(index: int, /) -> ToyDevice:
        raise OSError("the cable is out")

    toy.open = fail  # type: ignore[method-assign]
    with pytest.raises(
        DeviceError, match="toy1: its backend failed to open it: OSError: the cable"
    ):
        mge.tensor([1.0], device="toy1")
    with pytest.raises(DeviceError, match="no device toy2: 2 of this kind exist") as caught:
        mge.tensor([1.0], device="toy2")
    assert "hint: toy0 and toy1 exist" in str(caught.value)


def test_a_backend_without_devices_is_told_so() -> None:
    class Homeless(Backend):
        name, protocol = "homeless", (1, 0)

        def probe(self) -> Availability:
            return Availability(True)

    with pytest.raises(NotImplementedError, match="homeless has no devices"):
        Homeless().open(0)
    assert Homeless().kernels() == () and Homeless().device_kinds == ()


def test_support_is_its_truth_value() -> None:
    assert yes() and not no("shape", "too large")
    assert no("shape", "too large").message == "too large"
