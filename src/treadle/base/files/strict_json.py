"""JSON as a hostile file may contain it, parsed with the doors shut.

Python's parser keeps the last of duplicate keys, accepts NaN, turns 1e400 into infinity, spends
quadratic time on long integers and recurses as deep as the text asks. Here each is an error.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

MAX_DEPTH = 16
_MAX_DIGITS = 40  # tokenizers say that texts may have 10^30 tokens
_STRUCTURAL = b'"[]{}'
_OTHER = bytes(set(range(256)) - set(_STRUCTURAL))
_QUOTE = ord('"')
_OPENING = frozenset(b"[{")


def parse(raw: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ValueError: it is not UTF-8 or not JSON, nests deeper than `MAX_DEPTH`, repeats a key, or
            holds a number that is not finite or has too many digits.
    """
    _check_depth(raw)
    try:
        return json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_bounded_int,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        # The original error carries the whole document, which may be large.
        raise ValueError(f"{error.msg} at character {error.pos}") from None


def canonical(value: Any) -> bytes:
    """One spelling per value: sorted keys, no spaces, ASCII. Digests are taken over this."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _check_depth(raw: bytes) -> None:
    """Bound the nesting before the parser, which recurses, sees the text."""
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER)
    depth, inside = 0, False
    # Two quotes side by side cancel out; what remains is short in any honest file.
    for byte in bare.replace(b'""', b""):
        if byte == _QUOTE:
            inside = not inside
        elif not inside:
            depth += 1 if byte in _OPENING else -1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {shorten(repeated)}")
    return found


def _bounded_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text[:_MAX_DIGITS]} is out of range")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def shorten(value: object, limit: int = 80) -> str:
    """A `repr` for messages, bounded because the value comes from the file."""
    text = repr(value[: limit + 1]) if isinstance(value, str | list) else repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
