"""Settings of the whole process: decryption, caches, devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.lite.base import LiteBackend, LiteDeviceType, device_kind

Decrypt = Callable[[Any, bytes], bytes | list[int]]


@dataclass
class _Method:
    function: Decrypt
    key: bytes


_METHODS: dict[str, _Method] = {}
_PAIRS: dict[int, int] = {}
_CACHES: dict[str, str] = {}


def decryption_func(func: Decrypt) -> Decrypt:
    """Mark a function as one that decrypts: of (data, key), both bytes; it returns bytes."""
    return func


def decrypted(raw: bytes, name: str) -> bytes:
    """Data decrypted by a registered method.

    Raises:
        RuntimeError: there is none of that name.
    """
    if name not in _METHODS:
        raise RuntimeError(
            f"Lite: no decryption method {name!r} is registered; there are {list(_METHODS)}"
        )
    method = _METHODS[name]
    return bytes(method.function(raw, method.key))


def _key(key: Any) -> bytes:
    return bytes(key) if isinstance(key, bytes | bytearray) else bytes(np.asarray(key, np.uint8))


class LiteGlobal:
    """Settings of the process; all methods are static."""

    @staticmethod
    def register_decryption_and_key(
        decryption_name: str, decryption_func: Decrypt, key: Any
    ) -> None:
        """Register a method of decryption by name, with its key (bytes, or a list of ints).

        Raises:
            RuntimeError: the name is taken.
        """
        if decryption_name in _METHODS:
            raise RuntimeError(f"Lite: decryption method {decryption_name!r} is registered already")
        _METHODS[decryption_name] = _Method(decryption_func, _key(key))

    @staticmethod
    def update_decryption_key(decryption_name: str, key: Any) -> None:
        """Give a known method another key.

        Raises:
            RuntimeError: it is not known.
        """
        if decryption_name not in _METHODS:
            raise RuntimeError(f"Lite: no decryption method {decryption_name!r} is registered")
        _METHODS[decryption_name].key = _key(key)

    @staticmethod
    def set_loader_lib_path(path: str) -> None:
        """Open a library of loaders, which run models of other engines inside of programs.

        Raises:
            LoadError: it is not such a library; a RuntimeError.
        """
        # Networks without such models do without.
        from treadle.backends.c_loaders import open_loaders

        open_loaders(path)

    @staticmethod
    def set_persistent_cache(path: str, always_sync: bool = False) -> None:
        """Remember a path; compiled code is kept in the cache that `treadle info` names."""
        _CACHES["algorithms"] = path

    @staticmethod
    def dump_persistent_cache(path: str) -> None:
        """Write an empty file: choices are kept beside the compiled code."""
        Path(path).write_bytes(b"")

    @staticmethod
    def set_tensorrt_cache(path: str) -> None:
        """Remember a path; there is no TensorRT engine."""
        _CACHES["tensorrt"] = path

    @staticmethod
    def dump_tensorrt_cache() -> None:
        """Do nothing: there is no TensorRT engine."""

    @staticmethod
    def get_device_count(device_type: LiteDeviceType) -> int:
        """Number of devices of a type: one host, and what backends have found."""
        if not device_kind(device_type):
            return 1
        # Devices are behind this import, which networks of the host do without.
        from treadle.lite.placed import count_of

        return count_of(device_type)

    @staticmethod
    def try_coalesce_all_free_memory() -> None:
        """Do nothing: memory of runs is planned, and freed with its network."""

    @staticmethod
    def register_memory_pair(
        vir_ptr: Any,
        phy_ptr: Any,
        length: int,
        device: Any,
        backend: Any = LiteBackend.LITE_DEFAULT,
    ) -> None:
        """Remember that two addresses stand for the same memory."""
        _PAIRS[_address(vir_ptr)] = _address(phy_ptr)

    @staticmethod
    def clear_memory_pair(
        vir_ptr: Any, phy_ptr: Any, device: Any, backend: Any = LiteBackend.LITE_DEFAULT
    ) -> None:
        """Forget a pair."""
        _PAIRS.pop(_address(vir_ptr), None)

    @staticmethod
    def lookup_physic_ptr(
        vir_ptr: Any, device: Any, backend: Any = LiteBackend.LITE_DEFAULT
    ) -> int:
        """The other address of a pair.

        Raises:
            KeyError: it was not registered.
        """
        return _PAIRS[_address(vir_ptr)]


def _address(pointer: Any) -> int:
    return int(getattr(pointer, "value", pointer))


__all__ = ["LiteGlobal", "decrypted", "decryption_func"]
