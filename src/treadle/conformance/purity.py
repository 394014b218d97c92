"""Purity: a backend changes nothing by being there, and nothing is missing when it is gone.

All of it is looked at in one process of its own (`visit.py`), where the backend is fresh.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from treadle.conformance import visit
from treadle.conformance.check import Check, CheckFailed, Measured, require
from treadle.conformance.subject import Subject

_SLOW = 5.0
"""Seconds; importing a driver takes long, but not so long."""


def checks(subject: Subject) -> Iterator[Check]:
    """The group's checks; the first one to run pays for the process."""
    visited = functools.cache(partial(_visit, subject))
    for run in (
        import_changes_nothing,
        loaded_on_first_use,
        works_in_a_fresh_process,
        works_beside_others,
        hidden_when_asked,
        gone_when_switched_off,
        survives_fork,
    ):
        yield Check("Purity", run.__name__, _asking(run, visited))


def _asking(run: Any, visited: Any) -> Any:
    return lambda: run(visited())


def _visit(subject: Subject) -> dict[str, Any]:
    command = [sys.executable, "-P", visit.__file__, subject.name]
    done = subprocess.run(
        command, env=subject.environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise CheckFailed(f"the backend cannot be used in a process of its own: {last[0]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def import_changes_nothing(found: dict[str, Any]) -> Measured:
    """Importing it changes no attribute of the framework or NumPy, and no state of the process."""
    changed = sorted(set(found["changed"]))
    require(not changed, f"importing it changes {', '.join(changed[:5])}")
    require(found["threads"] <= 0, f"importing it starts {found['threads']} threads")
    require(bool(found["host_same"]), "with it loaded the host computes something else")
    return {"seconds to import": float(found["seconds"])}


def loaded_on_first_use(found: dict[str, Any]) -> None:
    """`import treadle` does not import it, and importing it is quick."""
    require(not found["early"], "import treadle imports the backend, which should wait for its use")
    require(found["seconds"] < _SLOW, f"importing it takes {found['seconds']:.1f} s")


def works_in_a_fresh_process(found: dict[str, Any]) -> None:
    """Check that a program may start with the backend."""
    require(bool(found["works"]), "1 + 2 + 3 is not 6 there")


def works_beside_others(found: dict[str, Any]) -> None:
    """Check that all installed backends can be loaded together."""
    require(not found["beside_others"], f"with all backends loaded: {found['beside_others']}")


def hidden_when_asked(found: dict[str, Any]) -> None:
    """TREADLE_<NAME>_VISIBLE_DEVICES decides which devices there are, and what they count as."""
    require(not found["hidden"], str(found["hidden"]))


def gone_when_switched_off(found: dict[str, Any]) -> None:
    """Check that TREADLE_BACKENDS=off refuses its devices and leaves the framework whole."""
    require(not found["off"], f"with TREADLE_BACKENDS=off: {found['off']}")


def survives_fork(found: dict[str, Any]) -> Measured:
    """Check that a child of fork may use the host, and the device if the parent did not."""
    after, before = found["fork_after"], found["fork_before"]
    require(after == "fine", f"after fork, with the device in use by the parent, the host: {after}")
    require(before != "wrong", "a forked child gets wrong results from the device")
    return {"device in a forked child": str(before)}
