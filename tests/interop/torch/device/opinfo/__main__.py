"""PyTorch's records of operators on `treadle:0`: numbers and gradients of the CPU.

`python -m tests.interop.torch.device.opinfo --help`. `known.toml` names every difference with its
reason, and may only shrink.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from treadle.conformance.answering_process import AnsweringProcess

KNOWN = Path(__file__).parent / "known.toml"


def problems_of(found: dict[str, Any]) -> list[str]:
    """What must not be: crashes, wrong numbers, errors where PyTorch's CPU runs."""
    lost = [f"crashed: {found['lost']}"] if "lost" in found else []
    lost += [f"broken: {found['broken']}"] if "broken" in found else []
    wrong = [f"wrong: {x}" for x in found.get("wrong", ())]
    return [*lost, *wrong, *(f"raised: {x}" for x in found.get("raised", ()))]


def forward_is_right(found: dict[str, Any]) -> bool:
    """Whether all that is wrong are gradients."""
    return all(": backward" in problem for problem in problems_of(found))


def ask(
    only: Sequence[str] = (), *, step: int = 1, samples: int, dtype: str = "float32"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Findings of every `step`-th record: of those that have such parts in their names, or all."""
    worker = AnsweringProcess(
        sys.executable, "-m", "treadle.interop.torch.checks", "treadle:0", quiet=True
    )
    every = list(worker.start()["names"])
    for name in [n for n in every if not only or any(part in n for part in only)][::step]:
        job = {"record": name, "dtype": dtype, "count": samples, "seed": 0}
        yield name, worker.ask(json.dumps(job), 120)
    worker.stop()


def known() -> dict[str, str]:
    """Reasons by record."""
    return dict(tomllib.loads(KNOWN.read_text())["float32"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="opinfo", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names; none: all records")
    parser.add_argument("--samples", type=int, default=3, help="per record")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--forward", type=int, default=0, help="fail below so many right records")
    parser.add_argument("--backward", type=int, default=0, help="likewise of gradients")
    parser.add_argument("-v", action="store_true", help="show what ran on the host")
    options = parser.parse_args()
    listed = known() if options.dtype == "float32" else {}
    found, bad = {}, 0
    for name, one in ask(options.only, samples=options.samples, dtype=options.dtype):
        found[name] = one
        problems = problems_of(one)
        bad += bool(problems) and name not in listed
        if not problems and name in listed:
            print(f"{name} is in {KNOWN.name} and is right: take it out")
            bad += 1
        for problem in problems[:2]:
            print(f"{name}: {problem}", flush=True)
        if options.v and one.get("host"):
            print(f"{name}: on the host {' '.join(one['host'])}", flush=True)
    # A record without samples says nothing; one of another element type is counted apart.
    tried = [f for f in found.values() if f.get("samples") or problems_of(f)]
    asked = [f for f in tried if f.get("dtype") == options.dtype]
    forward, other = sum(map(forward_is_right, asked)), sum(map(forward_is_right, tried))
    back = sum(f.get("backward") == "equal" and not problems_of(f) for f in asked)
    own = sum(not f.get("host") and not problems_of(f) for f in asked)
    print(
        f"opinfo on treadle:0: {len(found)} records; {options.dtype}: {forward} of {len(asked)} "
        f"right forward, {back} backward, {own} without the host; of other types alone: "
        f"{other - forward} of {len(tried) - len(asked)}; {bad} not as they should be"
    )
    if not options.only and (forward < options.forward or back < options.backward):
        print(f"fewer than {options.forward} forward or {options.backward} backward")
        bad += 1
    return int(bool(bad or not tried))


if __name__ == "__main__":
    sys.exit(main())
