"""Memory and loading of language models, from files with random weights.

Each turn is a process of its own: it imports `treadle.llm`, loads a file, answers to 32 tokens,
reads prompts of every width, answers 64 tokens behind one of 512, and says what was resident when:
"idle" is behind all of that, "largest" while it went on. Programs come from the cache: a turn
before the first is not counted. Times are the least ones of all turns, memory the largest. Aims:
the first token 2 s per GB and 0.5 s behind the import, memory 1.1 times the file and the cache.

    python benchmarks/llm_memory.py [--folder build/llm] [--turns 3] [qwen2.5-0.5b:Q4_0 ...]

writes the files that are not there (2.4 GB in all) and prints a table for RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path

from llm_files import KINDS, SHAPES, write

MODELS = (
    "smollm2-135m:Q4_0", "smollm2-135m:BF16", "qwen2.5-0.5b:Q4_0", "qwen2.5-0.5b:Q8_0",
    "tinyllama-1.1b:Q4_0", "llama-3.2-1b:Q4_0",
)  # fmt: skip
CONTEXT, ANSWER = 640, 64
PROMPTS = (5, 8, 32, 60, 128, 200, 512)
"""Of all widths; the last is what the answer stands behind."""


def resident(key: str = "VmRSS") -> float:
    """Return MB of memory, now or (`VmHWM`) at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(x for x in lines if x.startswith(key)).split()[1]) * 1024 / 1e6


def measured(path: str) -> dict[str, float]:
    """Times in seconds and memory in MB, of this process."""
    begun = time.perf_counter()
    import treadle.llm as llm
    from treadle.llm.generation import Options

    found = {"import": time.perf_counter() - begun, "python": resident()}
    begun = time.perf_counter()
    model = llm.load(path, context=CONTEXT)
    found["load"] = time.perf_counter() - begun

    def answered(count: int, answer: int) -> None:
        given = [300 + (count + i * 7919) % 20000 for i in range(count)]
        for _ in model.engine.submit(given, Options(max_tokens=answer, ignore_eos=True)):
            found.setdefault("first", time.perf_counter() - begun)

    answered(32, 8)
    found["answered"] = resident()
    for count in PROMPTS:
        answered(count, ANSWER if count == PROMPTS[-1] else 2)
    found |= {"now": resident(), "largest": resident("VmHWM")}
    found["cache"] = model.model.cache(1, CONTEXT).nbytes / 1e6
    return found


def turn(path: Path) -> dict[str, float]:
    """Return what a process of its own has measured."""
    command = [sys.executable, __file__, "--side", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def processor() -> str:
    """Return the processor's name, its cores and those of its instructions that kernels use."""
    from treadle.device import get_device_properties

    text = Path("/proc/cpuinfo").read_text()
    name = next((x for x in text.splitlines() if x.startswith("model name")), platform.machine())
    flags = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if f in text]
    threads = get_device_properties("cpu0").threads
    return f"{name.partition(': ')[2] or name} ({', '.join(flags)}), {threads} threads"


def row(name: str, path: Path, turns: list[dict[str, float]]) -> str:
    """Return a line of the table."""
    size = path.stat().st_size / 1e6
    least = {key: min(t[key] for t in turns) for key in ("load", "first")}
    most = {key: max(t[key] for t in turns) for key in turns[0]}
    aim = 1.1 * size + most["cache"]
    cells = [
        f"{name.replace(':', ' ')}",
        *(f"{x:.0f}" for x in (size, most["cache"])),
        *(f"{x:.2f}" for x in (least["load"], least["first"], 2e-3 * size + 0.5)),
        *(f"{most[key]:.0f}" for key in ("python", "answered", "now", "largest")),
        f"{aim:.0f}",
        f"{most['now'] / aim:.2f}",
        f"{most['largest'] / aim:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [f"{name}:{kind}" for name in SHAPES for kind in KINDS]
    parser.add_argument("models", nargs="*", metavar="NAME:FORMAT", default=MODELS)
    parser.add_argument("--folder", type=Path, default=Path("build/llm"))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(measured(given.side)))
        return
    if unknown := set(given.models).difference(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    names = (f"{name} {version(name)}" for name in ("numpy", "tokenizers"))
    print(f"{date.today()}, {processor()}, Python {platform.python_version()}, {', '.join(names)}")
    print(
        "\n| weights | file, MB | cache | loaded, s | first token | aim | imported, MB "
        "| first token | idle | largest | aim | idle / aim | largest / aim |"
    )
    print("|---" * 13 + "|")
    for name in given.models:
        path = given.folder / f"{name.replace(':', '-')}.gguf"
        if not path.exists():
            write(path, *name.split(":"))
        turns = [turn(path) for _ in range(given.turns + 1)][1:]
        print(row(name, path, turns), flush=True)


if __name__ == "__main__":
    main()
