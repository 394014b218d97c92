"""Run one example by name, or all of them, and say how long each took.

python examples/run.py NAME|all [arguments of the example]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PEERS = (
    *("answer", "beside_torch", "digits_torch", "find_speech", "read_text", "resnet_torch"),
    *("digits_web", "search", "transformer_torch"),
)
"""Examples that need another framework, foreign models or a visitor; they run when they are named.
"""


def names() -> list[str]:
    """Examples that need Treadle alone, and end."""
    found = sorted(p.stem for p in FOLDER.glob("*.py"))
    return [name for name in found if name not in (*PEERS, "run")]


def main(arguments: list[str]) -> int:
    """Run them; 0 if all succeed, 2 if there is no such example."""
    known = [*names(), *PEERS]
    chosen = names() if arguments[:1] == ["all"] else arguments[:1]
    if not chosen or chosen[0] not in known:
        print(f"usage: python examples/run.py NAME|all [arguments]\nexamples: {', '.join(known)}")
        return 2
    failed = []
    for name in chosen:
        print(f"-- {name}", flush=True)
        began = time.perf_counter()
        code = subprocess.run(
            [sys.executable, str(FOLDER / f"{name}.py"), *arguments[1:]]
        ).returncode
        seconds = time.perf_counter() - began
        print(f"-- {name}: {'done' if code == 0 else f'failed ({code})'} in {seconds:.1f} s\n")
        failed += [name] if code else []
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
