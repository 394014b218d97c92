"""`PersistentCacheOnServer`: a cache of bytes by category and key, in memory, a file or Redis.

MegEngine keeps choices of algorithms in one. Treadle's own caches (compiled kernels, programs,
measured choices) lie in a directory that `treadle info` names and need no setting; this class is
there for programs that bring their own store.
"""

from __future__ import annotations

import importlib
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from treadle.base.env import FASTRUN_CACHE_DIR, FASTRUN_CACHE_TYPE, FASTRUN_CACHE_URL, Variable
from treadle.base.files.atomic import write_atomically


class Store(Protocol):
    """The interface of stores of bytes; `redis.Redis` is one."""

    def get(self, key: str, /) -> bytes | None:
        """The bytes of a key, None where there are none."""
        ...

    def set(self, key: str, value: bytes, /) -> Any:
        """Keep bytes under a key."""
        ...


class InMemory:
    """A store that lives as long as the process."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def get(self, key: str, /) -> bytes | None:
        """The bytes of a key."""
        return self._held.get(key)

    def set(self, key: str, value: bytes, /) -> None:
        """Keep bytes under a key."""
        self._held[key] = bytes(value)


class InFile(InMemory):
    """A store in one JSON file, rewritten whole at each change; damage counts as empty."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
            self._held = {str(k): b64decode(v) for k, v in known.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._held = {}

    def set(self, key: str, value: bytes, /) -> None:
        """Keep bytes under a key."""
        super().set(key, value)
        text = json.dumps({k: b64encode(v).decode() for k, v in self._held.items()}).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(str(self.path), [text], len(text))


def _redis(url: str) -> Store:
    try:
        redis = importlib.import_module("redis")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "persistent_cache: a Redis store needs the package redis\n  hint: pip install redis"
        ) from None
    made: Store = redis.Redis.from_url(url)
    return made


class Place(NamedTuple):
    """Place of a cache.

    Attributes:
        type: "in-memory", "in-file", "redis", or "other" for a store that was given.
        desc: the address or the path, empty where there is none.
    """

    type: str
    desc: str = ""


class PersistentCacheOnServer:
    """A cache of bytes by category and key.

    Where it is: the environment variables MGE_FASTRUN_CACHE_TYPE ("MEMORY", "FILE" or "REDIS"),
    MGE_FASTRUN_CACHE_DIR and MGE_FASTRUN_CACHE_URL, unless a store is given.

    Args:
        store: where bytes are kept.

    Attributes:
        config: the `Place`, None before the first `get` or `put`, which look at the environment.
    """

    config: Place | None = None

    def __init__(self, store: Store | None = None) -> None:
        self._given = store

    @cached_property
    def _store(self) -> Store:
        store = self._given or self._from_environment()
        if isinstance(store, InFile):
            self.config = Place("in-file", str(store.path))
        elif isinstance(store, InMemory):
            self.config = Place("in-memory")
        else:
            url = FASTRUN_CACHE_URL.get() if self._given is None else ""
            self.config = Place("redis" if self._given is None else "other", url)
        return store

    @staticmethod
    def _from_environment() -> Store:
        """The store that the environment names.

        Raises:
            ValueError: there is no such type, or its place is missing.
        """
        wanted = FASTRUN_CACHE_TYPE.get().upper()
        makers: dict[str, tuple[Variable, Callable[[str], Store]]] = {
            "FILE": (FASTRUN_CACHE_DIR, lambda d: InFile(Path(d) / "cache.bin")),
            "REDIS": (FASTRUN_CACHE_URL, _redis),
        }
        if wanted == "MEMORY":
            return InMemory()
        if wanted not in makers:
            raise ValueError(f"MGE_FASTRUN_CACHE_TYPE is {wanted!r}, not MEMORY, FILE or REDIS")
        place, make = makers[wanted]
        if not place.get():
            raise ValueError(f"MGE_FASTRUN_CACHE_TYPE is {wanted}, which needs {place.names[0]}")
        return make(place.get())

    @staticmethod
    def _key(category: str, key: bytes | str) -> str:
        return f"{category}:{b64encode(_bytes(key)).decode()}"

    def get(self, category: str, key: bytes | str) -> bytes | None:
        """The bytes of a key, None where there are none; text counts as its UTF-8."""
        return self._store.get(self._key(category, key))

    def put(self, category: str, key: bytes | str, value: bytes | str) -> None:
        """Keep bytes under a key; text counts as its UTF-8."""
        self._store.set(self._key(category, key), _bytes(value))


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


__all__ = ["InFile", "InMemory", "PersistentCacheOnServer", "Place", "Store"]
