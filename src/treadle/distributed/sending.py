"""Functions as bytes for other processes, with the files that their lines are in."""

from __future__ import annotations

import io
from collections import ChainMap
from collections.abc import Callable
from types import CodeType
from typing import Any


def dumps(cloudpickle: Any, value: object) -> bytes:
    """Pickle a value, functions and classes of `__main__` included; `pickle.loads` reads it.

    cloudpickle 3.1.3 replaces the names of files by "<dynamic-code>", so that no traceback shows a
    line and no error tells where it was; here they stay.

    Args:
        cloudpickle: the module, which an extra brings.
        value: functions and what they refer to.
    """
    plain = cloudpickle.Pickler.dispatch_table[CodeType]

    def reduced(code: CodeType) -> tuple[Any, ...]:
        make, arguments, *_ = plain(code)
        return _named, (make, arguments, code.co_filename)

    table = ChainMap({CodeType: reduced}, cloudpickle.Pickler.dispatch_table)
    pickler = type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
    with io.BytesIO() as file:
        pickler(file).dump(value)
        return file.getvalue()


def _named(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    """Code with the name of its file."""
    return make(*arguments).replace(co_filename=file)
