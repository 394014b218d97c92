"""Inner loops of products beside LLVM's models of processors: cycles per turn and their limit.

Run as `python -m tools.kernel_model`; needs `llvm-mca` (Debian's packages `llvm-19` and later).
For every processor of the list and every type of product the kernel is generated, its busiest loop
is taken from the assembly, and `llvm-mca` runs it with operands in the first cache. The limit is
what the loop's multiply-adds alone would take by the same model. `--check` times the kernels that
this machine runs, too, on one thread: their share of what multiply-adds from registers reach.
`--write` puts the table into the documentation.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from treadle.backends.api import Support
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.llvm import module_text, symbol_of
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.target import AVX2, AVX512, NEON, NEON_DOT, Target
from treadle.backends.cpu import roofline
from treadle.backends.cpu.building import linked_by_llvm, translate
from treadle.backends.cpu.host import flags, host_target, required
from treadle.backends.program import Launch, Lowered, Ref, runs_of
from treadle.base import dtype as dt
from treadle.base.dtype import DType
from treadle.base.types import TensorType
from treadle.ops.matmul import IntMatmul, Matmul

PAGE = Path(__file__).parents[1] / "docs" / "processor-models.md"
BEGIN, END = "<!-- table -->", "<!-- end of the table -->"
ROWS, TERMS, COLUMNS = 192, 512, 256
"""Extents of the products: a panel and its rows stay in the second cache."""
TURNS = 200
SECONDS = 0.5
MULTIPLIES = re.compile(
    r"\s(v?fn?madd\w*[ps]s|vpdpbusds?|vdpbf16ps|vpmaddubsw|vpmaddwd|tdp\w+"
    r"|fml[as]|[us]mla\w*|mla|[us]+dot|bfdot|\w*mmla)\s"
)
_LABEL = re.compile(r"^([.\w$]+):")
_JUMP = re.compile(r"\s(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s+(?:.*,\s*)?([.\w$]+)\s*(?:#.*|//.*)?$")
_ARM = "aarch64-unknown-linux-gnu"


@dataclass(frozen=True)
class Machine:
    """A processor.

    Attributes:
        name: for people.
        model: LLVM's name of its scheduling model.
        target: what kernels are generated for.
    """

    name: str
    model: str
    target: Target


def _x86(name: str, *features: str) -> Target:
    return replace(
        AVX512,
        name=name,
        features=features,
        dot_int8="+avx512vnni" in features,
        dot_bfloat16="+avx512bf16" in features,
    )


_ICE_LAKE = _x86("avx512-vnni", "+avx512vnni")
_BOTH = _x86("avx512-bf16", "+avx512vnni", "+avx512bf16")
MACHINES = (
    Machine("Zen 3", "znver3", AVX2),
    Machine("Zen 4", "znver4", _BOTH),
    Machine("Zen 5", "znver5", _BOTH),
    Machine("Skylake-SP", "skylake-avx512", replace(AVX512)),
    Machine("Ice Lake", "icelake-server", _ICE_LAKE),
    Machine("Sapphire Rapids", "sapphirerapids", _BOTH),
    Machine("Neoverse N1", "neoverse-n1", NEON),
    Machine("Neoverse N2", "neoverse-n2", NEON_DOT),
    Machine("Neoverse V1", "neoverse-v1", NEON_DOT),
    Machine("Neoverse V2", "neoverse-v2", NEON_DOT),
)
PRODUCTS: dict[str, tuple[Matmul | IntMatmul, DType, DType]] = {
    "float32": (Matmul(), dt.float32, dt.float32),
    "bfloat16": (Matmul(), dt.bfloat16, dt.bfloat16),
    "int8": (IntMatmul(), dt.uint8, dt.int8),
}
"""Types of both operands."""


@dataclass(frozen=True)
class Row:
    """What a model says of one loop.

    Attributes:
        machine, product: which.
        mnemonic: of its multiply-adds.
        count: how many there are in a turn.
        limit: cycles of a turn that has nothing but those.
        cycles: cycles of a turn.
        terms: products of two numbers that are added in a turn.
    """

    machine: Machine
    product: str
    mnemonic: str
    count: int
    limit: float
    cycles: float
    terms: int


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="tools.kernel_model", description=__doc__)
    parser.add_argument("--check", action="store_true", help="time the kernels on this machine")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    chosen = parser.parse_args(arguments)
    program = analyzer()
    if program is None:
        print("llvm-mca is missing: install Debian's llvm-19 (`make setup-model`)")
        return 2
    lines = table(list(rows(program)))
    if chosen.check:
        lines += ["", *measured()]
    print("\n".join(lines))
    if chosen.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text("\n".join((f"{before}{BEGIN}", "", *lines, "", f"{END}{after}")))
    return 0


def analyzer() -> str | None:
    """The newest llvm-mca that is installed and knows all the processors."""
    names = [f"llvm-mca-{version}" for version in range(30, 18, -1)]
    return next((found for found in map(shutil.which, names) if found), None)


def rows(program: str) -> Iterator[Row]:
    """What the models say, machine by machine."""
    for machine in MACHINES:
        for product in PRODUCTS:
            found = inner_loop(machine, product)
            multiplies = [line for line in found if MULTIPLIES.search(line)]
            names = [m[1] for line in multiplies if (m := MULTIPLIES.search(line))]
            yield Row(
                machine,
                product,
                max(dict.fromkeys(names), key=names.count),
                len(multiplies),
                run_model(program, machine, multiplies)[0],
                run_model(program, machine, found)[1],
                sum(map(_terms, multiplies)),
            )


def table(found: Sequence[Row]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| processor | product | multiply-adds in a turn | limit, cycles | model, cycles | share | "
        "products per cycle |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for r in found:
        lines.append(
            f"| {r.machine.name} | {r.product} | {r.count} x `{r.mnemonic}` | {r.limit:.1f} | "
            f"{r.cycles:.1f} | {min(1.0, r.limit / r.cycles):.0%} | {r.terms / r.cycles:.1f} |"
        )
    return lines


# -- loops ---------------------------------------------------------------------------------------


def lowered(target: Target, product: str) -> tuple[Lowered, list[TensorType]]:
    """A product with a weight that does not change, and its types."""
    op, a, b = PRODUCTS[product]
    types = [TensorType(a, (ROWS, TERMS)), TensorType(b, (TERMS, COLUMNS))]
    how = lower(op, types, (False, True), target)
    if isinstance(how, Support):
        raise RuntimeError(f"{product} on {target.name}: {how}")
    return how, types


def inner_loop(machine: Machine, product: str) -> list[str]:
    """The instructions of a turn of the loop that multiplies most at a time."""
    how, _ = lowered(machine.target, product)
    texts = (
        translate(module_text([x.kernel], machine.target), machine.target, "assembly").decode()
        for x in how.launches
    )
    return max((busiest(text.splitlines()) for text in texts), key=_multiplies)


def busiest(lines: Sequence[str]) -> list[str]:
    """Of the loops without loops inside, the one with the most multiply-adds.

    A loop is what lies between a label and a jump back to it.
    """
    places: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        if label := _LABEL.match(line):
            places[label[1]] = at
        elif (jump := _JUMP.search(line)) and jump[1] in places:
            spans.append((places[jump[1]], at))
    inner = [
        (lo, hi) for lo, hi in spans if not any(lo <= a and b < hi for a, b in spans if a > lo)
    ]
    bodies = [
        [x for x in lines[lo + 1 : hi + 1] if x.startswith("\t") and not x.startswith("\t.")]
        for lo, hi in inner
    ]
    return max(bodies, key=_multiplies, default=[])


def _multiplies(lines: Sequence[str]) -> int:
    return sum(bool(MULTIPLIES.search(line)) for line in lines)


def _terms(line: str) -> int:
    """Products of two numbers that an instruction adds."""
    size = next((n for r, n in (("zmm", 64), ("ymm", 32)) if f"%{r}" in line), 16)
    found = MULTIPLIES.search(line)
    name = found[1] if found else ""
    if name.startswith("vpmaddwd"):
        return 0  # It adds what vpmaddubsw multiplied.
    if name.endswith("mmla"):
        return 16 if name.startswith("bf") else 32
    if name.startswith(("vpdp", "vpmaddub")) or (name.endswith("dot") and name != "bfdot"):
        return size
    if name.startswith("vdp") or name == "bfdot":
        return size // 2
    return size // 4


def run_model(program: str, machine: Machine, lines: Sequence[str]) -> tuple[float, float]:
    """Cycles of a turn: by the busiest unit alone, and as the model runs it."""
    arm = machine.target.triple == _ARM
    command = [program, f"-mtriple={_ARM if arm else 'x86_64-unknown-linux-gnu'}"]
    command += [f"-mcpu={machine.model}", "-json", f"-iterations={TURNS}"]
    command += ["-skip-unsupported-instructions=lack-sched"]
    text = "\n".join((*lines, ""))
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{machine.name}: {done.stderr}")
    view = json.loads(done.stdout)["CodeRegions"][0]["SummaryView"]
    return float(view["BlockRThroughput"]), view["TotalCycles"] / TURNS


# -- this machine --------------------------------------------------------------------------------


def measured() -> list[str]:
    """Lines of Markdown: shares that kernels reach here, on one thread."""
    lines = ["| kernels for | product | kernel | share, measured |", "|---|---|---|--:|"]
    seen: set[Target] = set()
    here = host_target()
    for target in (*(m.target for m in MACHINES), replace(here, l1=AVX512.l1, l2=AVX512.l2)):
        runs = not target.triple and set(required(target)) <= flags()
        if target in seen or not runs:
            continue
        seen.add(target)
        for product in PRODUCTS:
            how, types = lowered(target, product)
            speed, name = _speed(target, how, types)
            unit = product if product in roofline.units_of(target) else ""
            ratio = speed / _best_speed(target, unit)
            apart = product == "int8" and not unit
            label = f"{target.name} with matrices" if target.matrices else target.name
            share = f"{ratio:.2f} x float32" if apart else f"{ratio:.0%}"
            lines.append(f"| {label} | {product} | `{name}` | {share} |")
    return lines


def _speed(target: Target, how: Lowered, types: Sequence[TensorType]) -> tuple[float, str]:
    """Operations per second of the launches that multiply, and the kernel's name."""
    sizes = {("input", i): t.nbytes for i, t in enumerate(types)}
    sizes |= {("workspace", i): int(n) for i, n in enumerate(how.workspaces)}
    sizes |= {("kept", i): n for i, n in enumerate(how.kept)}
    sizes |= {("output", 0): 4 * ROWS * COLUMNS}
    memory = {key: roofline.memory(size) for key, size in sizes.items()}
    memory |= {("constant", i): a for i, a in enumerate(how.constants)}
    for launch in how.prelude:
        _call(target, launch, memory)()
    busy = max(how.launches, key=lambda launch: int(launch.flops))
    runs = [_call(target, launch, memory) for launch in how.launches]
    for run in runs:
        run()
    run = runs[how.launches.index(busy)]
    return 2 * ROWS * TERMS * COLUMNS / _least(run), busy.kernel.name


def _best_speed(target: Target, unit: str) -> float:
    """Operations per second of multiply-adds from registers."""
    items, turns = 1, 1 << 15
    if unit:
        program, operations = roofline.products(target, unit, items, turns)
    else:
        program, operations = roofline.arithmetic(target, items, turns)
    (step,) = runs_of(program.steps)
    launch = Launch(step.kernel, (Ref("output", 0), turns), items)
    run = _call(target, launch, {("output", 0): roofline.memory(4096)})
    return operations / _least(run)


def _call(target: Target, launch: Launch, memory: dict[Any, Any]) -> Any:
    """A function that runs all items of a launch."""
    kernel: KernelModule = launch.kernel
    code = translate(module_text([kernel], target), target)
    library = linked_by_llvm([code], [symbol_of(kernel)])
    slots = [
        memory[a.kind, a.index].ctypes.data + int(a.offset) if isinstance(a, Ref) else int(a)
        for a in launch.arguments
    ]
    room = (ctypes.c_int64 * max(1, len(slots)))(*slots)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        library[symbol_of(kernel)]
    )

    def run(keep: object = (library, memory)) -> None:
        entry(ctypes.addressof(room), 0, int(launch.items))

    return run


def _least(run: Any) -> float:
    """Seconds of the fastest of many runs."""
    found, end = np.inf, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        run()
        found = min(found, time.perf_counter() - began)
    return float(found)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
