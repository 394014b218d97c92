"""What is found out about the processor."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.backends.codegen.target import TARGETS
from treadle.backends.cpu import host
from treadle.backends.cpu.llvm_compile import host_features
from treadle.base.errors import DeviceError
from treadle.base.process import RUNTIME

V3 = frozenset(["sse2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"])
V4 = V3 | frozenset(["avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"])
AMX = frozenset(["amx_tile", "amx_bf16", "amx_int8"])


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    RUNTIME.invalidate("environment")
    yield
    RUNTIME.invalidate("environment")


@pytest.mark.parametrize(
    ("features", "machine", "name", "int8", "bfloat16"),
    [
        (frozenset(), "x86_64", "generic", False, False),
        (V3 - {"fma"}, "x86_64", "generic", False, False),
        (V3, "x86_64", "avx2", False, False),
        (V3 | {"avx_vnni"}, "x86_64", "avx2", True, False),
        (V4 - {"avx512vl"}, "x86_64", "avx2", False, False),
        (V4, "x86_64", "avx512", False, False),
        (V4 | {"avx512_vnni", "avx512_bf16"}, "AMD64", "avx512", True, True),
        (V4 | {"avx512_vnni", "avx512_bf16"} | AMX, "x86_64", "avx512", True, True),
        (V4 | {"amx_tile"}, "x86_64", "avx512", False, False),
        (frozenset(("asimd",)), "aarch64", "neon", False, False),
        (frozenset(("asimd", "asimddp")), "aarch64", "neon-sdot", False, False),
        (frozenset(("asimddp", "bf16", "i8mm")), "aarch64", "neon-dot", True, True),
        (frozenset(("i8mm",)), "aarch64", "neon-dot", True, False),
        (frozenset(("bf16", "i8mm")), "arm64", "neon-dot", True, True),
        (frozenset(), "riscv64", "generic", False, False),
    ],
)
def test_targets(
    features: frozenset[str], machine: str, name: str, int8: bool, bfloat16: bool
) -> None:
    target = host.target_for(features, machine)
    assert (target.name, target.dot_int8, target.dot_bfloat16) == (name, int8, bfloat16)
    assert target.matrices == (features >= AMX and name == "avx512")
    assert target.dot_signed == (name == "neon-sdot")
    needed = frozenset(host.required(target))
    assert needed <= features
    assert host.target_for(needed, machine) == target, "what it requires is enough for it"


def test_the_host_is_found_as_llvm_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_CPU_TARGET", raising=False)
    target = host.host_target()
    assert target.name in TARGETS
    assert target.l1 >= 8 << 10 and target.l2 >= 64 << 10
    by_llvm = host.target_for(frozenset(host_features()), host.platform.machine())
    assert by_llvm.name == target.name
    assert by_llvm.features == target.features


def test_exact_products_of_bfloat16_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    features = V4 | {"avx512_vnni", "avx512_bf16"} | AMX
    monkeypatch.delenv("TREADLE_CPU_TARGET", raising=False)
    monkeypatch.setattr(host, "flags", lambda: features)
    monkeypatch.setattr(host.platform, "machine", lambda: "x86_64")
    assert host.host_target().matrices
    RUNTIME.invalidate("environment")
    monkeypatch.setenv("TREADLE_BFLOAT16", "exact")
    found = host.host_target()
    assert (found.dot_int8, found.dot_bfloat16, found.matrices) == (True, False, True)
    RUNTIME.invalidate("environment")
    monkeypatch.setenv("TREADLE_BFLOAT16", "quick")
    with pytest.raises(DeviceError, match="TREADLE_BFLOAT16='quick'"):
        host.host_target()


def test_a_lesser_target_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "target_for", lambda *_: TARGETS["avx2"])
    monkeypatch.setenv("TREADLE_CPU_TARGET", "generic")
    assert host.host_target().name == "generic"
    for name in ("avx512", "neon", "fast"):
        RUNTIME.invalidate("environment")
        monkeypatch.setenv("TREADLE_CPU_TARGET", name)
        with pytest.raises(DeviceError, match="hint: one of generic, avx2"):
            host.host_target()


def test_cores_are_limited_by_quotas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "_CGROUP", tmp_path)
    monkeypatch.setattr(host, "_MEMBERSHIP", tmp_path / "none")
    every = host.available_cores()
    assert every >= 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert host.available_cores() == every
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert host.available_cores() == 1
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert host.available_cores() == every
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    assert host.available_cores() == 1


@pytest.mark.parametrize(
    ("membership", "limited", "cores"),
    [
        ("0::/a.slice/b.service\n", "a.slice/b.service/cpu.max", 3),
        ("0::/a.slice/b.service\n", "a.slice/cpu.max", 3),
        ("0::/a.slice/b.service\n", "cpu.max", 3),
        ("1:cpu:/\n0::/a\n", "unified/a/cpu.max", 3),
        ("0::/docker/1234\n", "cpu.max", 3),
        ("0::/../outside\n", "cpu.max", 3),
        ("0::/a\n", "b/cpu.max", 8),
        ("4:cpu,cpuacct:/a/b\n2:memory:/\n", "cpu/a/b/cpu.cfs_quota_us", 3),
        ("4:cpu,cpuacct:/a/b\n", "cpu/a/cpu.cfs_quota_us", 3),
        ("4:cpuset:/a\n", "cpu/a/cpu.cfs_quota_us", 8),
        ("nonsense\n", "cpu.max", 8),
    ],
)
def test_quotas_of_the_groups_around_this_process_count(
    membership: str, limited: str, cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """2.5 cores are three threads."""
    monkeypatch.setattr(host, "_CGROUP", tmp_path / "groups")
    monkeypatch.setattr(host, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(host.sys, "platform", "linux")
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(host, "_siblings", str)
    (tmp_path / "membership").write_text(membership)
    file = tmp_path / "groups" / limited
    file.parent.mkdir(parents=True)
    if file.name == "cpu.max":
        file.write_text("250000 100000\n")
    else:
        file.write_text("250000")
        file.with_name("cpu.cfs_period_us").write_text("100000")
    assert host.available_cores() == cores


def test_what_cannot_be_read_has_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "_CPUS", tmp_path)
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "none")
    RUNTIME.invalidate("environment")
    try:
        assert host.host_target().l2 == TARGETS[host.host_target().name].l2
        assert host.available_cores() >= 1
    finally:
        RUNTIME.invalidate("environment")


def test_a_report_has_cores_and_vectors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(host, "_CPUS", tmp_path)
    monkeypatch.setattr(host.os, "cpu_count", lambda: 4)
    assert host.cores() == (2, 4)
    monkeypatch.setattr(host, "flags", lambda: frozenset(("fma", "avx2", "avx512f", "tsc")))
    assert host.vector_features() == "avx2 fma avx512f"
