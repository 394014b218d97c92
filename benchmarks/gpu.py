"""Everything that has to be measured on a machine with an NVIDIA GPU, in one command.

    python benchmarks/gpu.py [--device gpu0] [--out FOLDER] [--seconds 5] [--dry-run]

In this order: what the machine is; the tests that need a GPU; the conformance kit; launches,
copies and single kernels against what the hardware can do; all-reductions by NCCL; training steps
T1 to T5 beside PyTorch, eager and compiled, timed by events on the device. Each part runs in a
process of its own, so that one that fails leaves the others alone. FOLDER gets `results.md`,
`results.json`, one log per part and the kit's reports. PyTorch is left out where it is not
installed; its environment may be another one:
`--torch-python PATH`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from workloads import WORKLOADS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRAINING = ("T1", "T2", "T3", "T4", "T5")
TORCH_MODES = ("eager", "compile")
KIT = "from treadle.conformance.cli import main; main()"
_LOST = 124


@dataclass(frozen=True)
class Part:
    """One process: its name, its command, and the seconds it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float


def main() -> None:
    """Run all parts, or show them."""
    given = _arguments()
    parts = _parts(given)
    if given.dry_run:
        _show(parts)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for part in parts:
        print(f"{part.name} ...", flush=True)
        results[part.name] = _run(part, given.out)
    (given.out / "results.json").write_text(json.dumps(results, indent=1))
    text = _report(results)
    (given.out / "results.md").write_text(text)
    print(text)
    raise SystemExit(any(r["status"] for n, r in results.items() if not n.startswith("torch")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="gpu0", help="Treadle's name of the device")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of results")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing per workload")
    parser.add_argument("--torch-python", default=sys.executable, help="interpreter with PyTorch")
    parser.add_argument("--only", action="append", help="begin of a part's name; may repeat")
    parser.add_argument("--dry-run", action="store_true", help="show and check, run nothing")
    return parser.parse_args()


def _parts(given: argparse.Namespace) -> list[Part]:
    own, seconds = sys.executable, str(given.seconds)
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "cuda", "tests/backends/cuda")
    kit = ("-c", KIT, "cuda", "--report", str(given.out.resolve() / "kit"))
    child = str(HERE / "gpu_own.py")
    parts = [
        Part("machine", (own, child, "machine", given.device), 120),
        Part("tests", (own, *tests), 3600),
        Part("kit", (own, *kit), 3600),
        Part("kernels", (own, child, "kernels", given.device, seconds), 1200),
        Part("nccl", (own, str(HERE / "gpu_nccl.py"), given.device, seconds), 600),
    ]
    for key in TRAINING:
        parts.append(Part(f"own {key}", (own, child, key, given.device, seconds), 1800))
        parts += [
            Part(
                f"torch {mode} {key}",
                (given.torch_python, str(HERE / "gpu_torch.py"), key, mode, seconds),
                1800,
            )
            for mode in TORCH_MODES
        ]
    wanted = tuple(given.only or ("",))
    return [part for part in parts if part.name.startswith(wanted)]


def _show(parts: Sequence[Part]) -> None:
    """Print what would run, after looking whether it could be found."""
    for part in parts:
        files = [Path(word) for word in part.command if word.endswith(".py")]
        missing = [str(f) for f in files if not f.is_file()]
        if missing:
            raise SystemExit(f"{part.name}: there is no {missing[0]}")
        for file in files:
            compile(file.read_text(), str(file), "exec")
        print(f"{part.name:<18} {shlex.join(part.command)}")
    if importlib.util.find_spec("treadle.conformance.cli") is None:
        raise SystemExit("there is no conformance kit")
    unknown = [key for key in TRAINING if key not in WORKLOADS]
    if unknown:
        raise SystemExit(f"there is no workload {unknown[0]}")


def _run(part: Part, out: Path) -> dict[str, Any]:
    """The status of a part, and the last line it printed where that is JSON."""
    with (out / f"{part.name.replace(' ', '-')}.log").open("w") as log:
        try:
            done = subprocess.run(
                part.command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                timeout=part.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"status": _LOST, "data": None, "tail": f"more than {part.seconds:.0f} s"}
        log.write(done.stdout)
    lines = done.stdout.strip().splitlines() or [""]
    try:
        data = json.loads(lines[-1])
    except json.JSONDecodeError:
        data = None
    return {"status": done.returncode, "data": data, "tail": lines[-1]}


# -- the report ----------------------------------------------------------------------------------


def _report(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"# On a GPU, {date.today()}", ""]
    machine = results.get("machine", {}).get("data")
    if machine:
        lines += [f"{name}: {value}  " for name, value in machine.items()] + [""]
    for name in ("tests", "kit"):
        if name in results:
            lines.append(f"{name}: status {results[name]['status']}, {results[name]['tail']}  ")
    return "\n".join([*lines, "", *_kernels(results), "", *_steps(results), ""])


def _kernels(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    parts = [results.get(name, {}).get("data") or {} for name in ("kernels", "nccl")]
    found = {name: row for part in parts for name, row in part.items()}
    if not found:
        return []
    rows = ["| measured | value | unit |", "|---|--:|---|"]
    return rows + [f"| {name} | {value:.4g} | {unit} |" for name, (value, unit) in found.items()]


def _steps(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Milliseconds of a step; ratios are PyTorch's over Treadle's: above 1 Treadle is faster."""
    heads = ["", "workload", "Treadle ms", *(f"PyTorch {m} ms" for m in TORCH_MODES)]
    heads += ["ratio to compiled", "first losses differ by", "without CUDA graphs ms"]
    rows = ["| " + " | ".join(heads) + " |", "|---|---|" + "--:|" * (len(heads) - 2)]
    for key in TRAINING:
        names = [f"own {key}", *(f"torch {mode} {key}" for mode in TORCH_MODES)]
        if not any(name in results for name in names):
            continue
        own, *peers = (results.get(name, {}).get("data") for name in names)
        times = [
            f"{r['median']:.3f}" if r else "failed" if name in results else "-"
            for name, r in zip(names, (own, *peers), strict=True)
        ]
        best = peers[-1]
        ratio = f"{best['median'] / own['median']:.2f}" if own and best else "-"
        rows.append(
            f"| {key} | {WORKLOADS[key].title} | {' | '.join(times)} | {ratio} | "
            f"{_difference(own, peers)} | {_plain(own)} |"
        )
    return rows


def _plain(own: Any) -> str:
    """Milliseconds of a step whose launches are submitted one by one."""
    if not own or "plain" not in own:
        return "-"
    return f"{own['plain']:.3f}{'' if own.get('replayed') else ' (none was replayed)'}"


def _difference(own: Any, peers: Sequence[Any]) -> str:
    known = [p["losses"] for p in peers if p]
    if not own or not known:
        return "-"
    return f"{max(abs(a - b) for a, b in zip(own['losses'], known[0], strict=False)):.1e}"


if __name__ == "__main__":
    main()
