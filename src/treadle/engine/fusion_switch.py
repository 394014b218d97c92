"""The fusion switch file: which rewrites and groups a compilation leaves out, by name.

    {"Switch": {
        "GraphFusion": {"ALL": "on", "x * x => square(x)": "off", "find_attention": "off"},
        "Fusion": {"contraction": "off"}
    }}

It has the form of the file that GE calls fusion_switch.cfg. `GraphFusion` has the rewrite rules of
prepare, as the report names them, and the passes that find attention and products of integers;
`Fusion` has the kinds of groups that optimize makes. `ALL` stands for those a section does not
name, which are on without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from treadle.base.errors import EngineError

KINDS = ("attention", "contraction", "window", "loop")
"""Kinds of groups."""
PASSES = ("find_attention", "integers")
"""Passes of prepare that fuse; rules are parts of another pass."""
_STATES = {"on": False, "off": True}


def switched_off(path: str) -> tuple[str, ...]:
    """The names that a fusion switch file turns off, in alphabetical order.

    Args:
        path: of the file; `""` for none.

    Raises:
        EngineError: the file cannot be read, is not of this form, or has a name that is not known.
    """
    if not path:
        return ()
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(path, "cannot be read", str(error)) from error
    except ValueError as error:  # Neither UTF-8 nor JSON.
        raise _wrong(path, "is not JSON", str(error)) from error
    sections: dict[str, Callable[[], tuple[str, ...]]]
    sections = {"GraphFusion": graph_fusions, "Fusion": lambda: KINDS}
    switch = _object(path, "Switch", _object(path, "the file", data, ("Switch",)).get("Switch"))
    _known(path, "sections are", switch, sections)
    off: set[str] = set()
    for section, names in sections.items():
        if section in switch:
            off |= _off(path, section, switch[section], names())
    return tuple(sorted(off))


def graph_fusions() -> tuple[str, ...]:
    """Names of what `GraphFusion` turns on and off."""
    from treadle.graph.simplify import RULES  # Programs out of the cache do without.

    return (*PASSES, *[rule.name for rule in RULES])


def _off(path: str, section: str, states: Any, names: tuple[str, ...]) -> set[str]:
    given = _object(path, section, states)
    _known(path, f"names in {section} are", given, ("ALL", *names))
    for name, state in given.items():
        if state not in tuple(_STATES):
            raise _wrong(path, f"{name!r} is neither on nor off", repr(state))
    rest = _STATES[given.get("ALL", "on")]
    return {n for n in names if (_STATES[given[n]] if n in given else rest)}


def _object(path: str, what: str, data: Any, names: Iterable[str] = ()) -> dict[str, Any]:
    if not isinstance(data, dict) or not set(names) <= set(data):
        raise _wrong(path, f"{what} is not of the right form", json.dumps(data)[:80])
    return data


def _known(path: str, what: str, given: Iterable[str], names: Iterable[str]) -> None:
    listed = tuple(names)
    for name in given:
        if name not in listed:
            near = get_close_matches(name, listed, 3, 0.4)
            best = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise EngineError(
                f"fusion switch {path}",
                f"there is no {name!r}",
                hint=f"{best}{what} {'; '.join(listed)}",
            )


def _wrong(path: str, problem: str, saw: str) -> EngineError:
    return EngineError(
        f"fusion switch {path}",
        problem,
        saw=saw,
        hint='write {"Switch": {"GraphFusion": {"RULE": "off"}, "Fusion": {"loop": "off"}}}',
    )
