"""Packages of the extra `llm`."""

from __future__ import annotations

import importlib
from typing import Any

from treadle.base.errors import LoadError


def needed(name: str) -> Any:
    """A module of the extra.

    Raises:
        LoadError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        hint = "pip install 'treadle[llm]', or '.[llm]' in a checkout"
        raise LoadError("llm", f"{package} cannot be imported: {error}", hint=hint) from None
