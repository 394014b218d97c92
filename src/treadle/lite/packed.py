"""Packed models: one file with a model, facts about it, and what was measured for it.

The file is a zip archive whose members are stored as they are: `model`, `info.json`, `cache.json`,
and `cryption.json` where methods by which the first two are decrypted have to be named.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from treadle.base.errors import CheckpointError
from treadle.lite.config import LiteOptions
from treadle.lite.globals import decrypted

Choices = Mapping[str, Mapping[str, int]]
"""Measured choices of kernels: numbers by the name of the question."""
_FORMAT = 1
_MODEL, _INFO, _CACHE, _CRYPTION = "model", "info.json", "cache.json", "cryption.json"


@dataclass(frozen=True, slots=True)
class Packed:
    """Content of a packed model: the bytes of the model file, facts, measurements."""

    model: bytes
    info: Mapping[str, Any]
    cache: Choices

    def options(self, given: LiteOptions) -> LiteOptions:
        """The options that the facts name, and others as given.

        Raises:
            CheckpointError: the facts name an option that there is not.
        """
        named = self.info.get("options", {})
        known = {f.name for f in fields(LiteOptions)}
        unknown = sorted(set(named) - known)
        if unknown:
            raise CheckpointError("load", f"the packed model names unknown options {unknown}")
        return LiteOptions(**{n: named.get(n, getattr(given, n)) for n in known})


def pack(path: Path, model: bytes, info: bytes, cache: Choices, methods: Mapping[str, str]) -> None:
    """Write a packed model.

    Args:
        path: of the file.
        model, info: bytes of the model file and of the facts' JSON, encrypted or not.
        cache: measurements.
        methods: names of decryption for "model" and "info"; "" for none.

    Raises:
        ValueError: the facts are not JSON.
    """
    if not methods["info"]:
        json.loads(info)
    members = {_MODEL: model, _INFO: info, _CACHE: choices_text(cache).encode()}
    if any(methods.values()):
        members[_CRYPTION] = json.dumps(dict(methods)).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)


def unpack(raw: bytes) -> Packed:
    """Read a packed model.

    Raises:
        CheckpointError: it is damaged, compressed, or lacks the model.
        RuntimeError: it is encrypted by a method that is not registered.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            # Members that are stored cannot grow beyond the file.
            if any(m.compress_type != zipfile.ZIP_STORED for m in archive.infolist()):
                raise ValueError("its members are compressed")
            held = {name: archive.read(name) for name in archive.namelist()}
        methods = json.loads(held.get(_CRYPTION, b"{}"))
        if not isinstance(methods, Mapping):
            raise ValueError("its methods of decryption are not an object")
        for member, kind in ((_MODEL, "model"), (_INFO, "info")):
            if methods.get(kind):
                held[member] = decrypted(held[member], methods[kind])
        info = json.loads(held.get(_INFO, b"{}"))
        if not isinstance(info, Mapping) or not isinstance(info.get("options", {}), Mapping):
            raise ValueError("its facts are not an object")
        cache = choices_of(held[_CACHE].decode()) if _CACHE in held else {}
        return Packed(held[_MODEL], info, cache)
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, NotImplementedError) as error:
        raise CheckpointError("load", f"the packed model is damaged: {error}") from error


def choices_text(choices: Choices) -> str:
    """Measurements as a file holds them."""
    known = {name: dict(choice) for name, choice in sorted(choices.items())}
    return json.dumps({"format": _FORMAT, "choices": known}, indent=1) + "\n"


def choices_of(text: str) -> Choices:
    """Measurements from a file's text.

    Raises:
        ValueError: it holds something else.
    """
    content = json.loads(text)
    choices = content.get("choices") if isinstance(content, Mapping) else None
    if not isinstance(choices, Mapping) or not all(map(_is_choice, choices.values())):
        raise ValueError("there is no record of measurements")
    if content.get("format") != _FORMAT:
        raise ValueError(f"measurements have format {content.get('format')}, this is {_FORMAT}")
    return choices


def _is_choice(choice: Any) -> bool:
    return isinstance(choice, Mapping) and all(type(v) is int for v in choice.values())


__all__ = ["Choices", "Packed", "choices_of", "choices_text", "pack", "unpack"]
