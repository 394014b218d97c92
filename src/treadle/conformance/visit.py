"""Loads a backend in a process of its own and tells, as JSON, what that changed around it.

Run as a script, so that nothing is imported before this module looks: `python -P visit.py NAME`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
import types
import warnings
from typing import Any

PATIENCE = 20.0
"""Seconds that a child of `fork` may take."""
_OURS = ("treadle", "numpy")


def visit(name: str) -> dict[str, Any]:
    """Everything the group Purity wants to know about a backend."""
    found: dict[str, Any] = {"changed": []}
    import treadle

    modules = set(sys.modules)
    from treadle.backends import registry

    module = _module_of(name, registry.BUILT_IN)
    found["early"] = module in modules
    import treadle.backends.api

    # What comes when it is first used would look like a change.
    for late in treadle.__all__:
        getattr(treadle, late)
    before, process = framework_state(), process_state()
    threads = threading.active_count()
    started = time.perf_counter()
    importlib.import_module(module)
    found["seconds"] = time.perf_counter() - started
    found["threads"] = threading.active_count() - threads
    found["changed"] += differences(before, framework_state())
    found["changed"] += differences(process, process_state())
    registry.load(name)
    found["changed"] += differences(before, framework_state())
    kind = (*registry.entries()[name].kinds, "cpu")[0]
    found["host_same"] = _total("cpu0") == 6.0
    found["fork_before"] = in_child(lambda: _total(f"{kind}0") == 6.0)
    found["works"] = _total(f"{kind}0") == 6.0
    found["fork_after"] = in_child(lambda: _total("cpu0") == 6.0)
    found["beside_others"] = _beside_others(registry, kind)
    found["hidden"] = "" if kind == "cpu" else _hidden(registry, name, kind)
    found["off"] = "" if name in registry.BUILT_IN else _switched_off(registry, kind)
    return found


def _module_of(name: str, built_in: dict[str, str]) -> str:
    """The module that a backend's entry point names."""
    points = importlib.metadata.entry_points(group="treadle.backends", name=name)
    targets = [point.value for point in points] or [built_in[name]]
    return targets[0].partition(":")[0]


def _total(device: str) -> float:
    """1 + 2 + 3 on a device; 6.0 where all is well."""
    import treadle

    with treadle.fallback("silent"):
        x = treadle.tensor([1.0, 2.0, 3.0], device=device)
        return float((x + x).sum().item() / 2)


def _beside_others(registry: Any, kind: str) -> str:
    """Return what goes wrong with all backends loaded; "" if nothing does."""
    registry.loaded()
    return "" if _total(f"{kind}0") == 6.0 and _total("cpu0") == 6.0 else "other results"


def _hidden(registry: Any, name: str, kind: str) -> str:
    """Return what goes wrong where the user hides devices; "" if nothing does."""
    from treadle.base.env import visible_devices

    count = registry.entries()[name].count
    variable = visible_devices(name)[0]
    os.environ[variable] = str(count - 1)
    registry.rescan()
    if _total(f"{kind}0") != 6.0:
        return f"with {variable}={count - 1} the last device gives wrong results as number 0"
    os.environ[variable] = "-1"
    registry.rescan()
    refused = _refused(f"{kind}0")
    del os.environ[variable]
    registry.rescan()
    return "" if refused else f"{kind}0 can be used in spite of {variable}=-1"


def _refused(device: str) -> bool:
    """Return whether the framework says that there is no such device."""
    from treadle.base.errors import DeviceError

    try:
        _total(device)
    except DeviceError:
        return True
    return False


def _switched_off(registry: Any, kind: str) -> str:
    """Return what goes wrong where the allow list has no foreign backend; "" if nothing does."""
    os.environ["TREADLE_BACKENDS"] = "off"
    registry.rescan()
    if _total("cpu0") != 6.0:
        return "the host computes something else"
    return "" if _refused(f"{kind}0") else f"{kind}0 can still be used"


# -- snapshots ---------------------------------------------------------------------------------


def framework_state() -> dict[str, int]:
    """Identities of everything in the framework's modules and classes, by dotted name."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _OURS or "conformance" in name:
            continue
        for attribute, value in list(vars(module).items()):
            if isinstance(value, types.ModuleType) or attribute.startswith("_"):
                continue
            found[f"{name}.{attribute}"] = id(value)
            if isinstance(value, type) and value.__module__ == name:
                members = list(vars(value).items())
                found |= {f"{name}.{attribute}.{m}": id(v) for m, v in members if _lasting(m)}
    return found


def _lasting(member: str) -> bool:
    # Python itself replaces caches such as those of abstract classes.
    return not member.startswith(("_abc", "__abstract", "_is_", "__weakref__", "__dict__"))


def process_state() -> dict[str, Any]:
    """Return the state that a module should leave alone when it is imported."""
    import treadle

    numpy: Any = importlib.import_module("numpy")
    handlers = {f"signal {s.name}": repr(signal.getsignal(s)) for s in signal.Signals}
    return {
        **{f"environment {key}": value for key, value in os.environ.items()},
        **handlers,
        "working directory": os.getcwd(),
        "umask": _umask(),
        "sys.excepthook": id(sys.excepthook),
        "recursion limit": sys.getrecursionlimit(),
        "warning filters": len(warnings.filters),
        "numpy error state": str(numpy.geterr()),
        "numpy random state": str(numpy.random.get_state()[1][:4]),
        "default device": treadle.get_default_device(),
    }


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names whose value changed, went, or (of the process's state) came."""
    changed = [name for name, value in before.items() if after.get(name) != value]
    known = {name.rpartition(".")[0] for name in before}
    return changed + [n for n in after if n not in before and n.rpartition(".")[0] in known]


# -- children ----------------------------------------------------------------------------------


def in_child(work: Any) -> str:
    """Return how work ends in a forked child: "fine", "wrong", "hangs", or what it raises."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, _outcome(work).encode()[:4000])
        os._exit(0)
    os.close(write)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        done, _ = os.waitpid(child, os.WNOHANG)
        if done:
            return os.read(read, 4000).decode() or "it died"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def _outcome(work: Any) -> str:
    try:
        return "fine" if work() else "wrong"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Visit the backend named by the first argument."""
    json.dump(visit(sys.argv[1]), sys.stdout)


if __name__ == "__main__":
    main()
