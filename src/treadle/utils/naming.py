"""`AutoNaming`: names for tensors and ops inside scopes."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar


class AutoNaming:
    """Scopes that names are put into; one object per process.

    Example:
        >>> AutoNaming.push_scope("net")
        >>> AutoNaming.push_scope("conv")
        >>> AutoNaming.get_scope(), AutoNaming.gen_name("weight"), AutoNaming.gen_name("weight")
        ('net.conv', 'net.conv.weight', 'net.conv.weight_1')
        >>> AutoNaming.clear()
    """

    scopes: ClassVar[list[str]] = []
    _used: ClassVar[Counter[str]] = Counter()
    _variables: ClassVar[dict[int, str]] = {}

    @classmethod
    def clear(cls) -> None:
        """Forget scopes and names."""
        cls.scopes.clear()
        cls._used.clear()
        cls._variables.clear()

    @classmethod
    def push_scope(cls, scope: str) -> None:
        """Enter a scope."""
        cls.scopes.append(scope)

    @classmethod
    def pop_scope(cls) -> None:
        """Leave the innermost scope.

        Raises:
            IndexError: there is none.
        """
        cls.scopes.pop()

    @classmethod
    def get_scope(cls) -> str:
        """Scopes from the outermost on, with dots."""
        return ".".join(s for s in cls.scopes if s)

    @classmethod
    def gen_name(cls, name: str) -> str:
        """A name inside the scope that nobody has yet."""
        whole = ".".join(part for part in (cls.get_scope(), name) if part)
        number = cls._used[whole]
        cls._used[whole] += 1
        return f"{whole}_{number}" if number else whole

    @classmethod
    def record_var_name(cls, var_id: int, name: str) -> None:
        """Keep the name of a variable."""
        cls._variables[var_id] = name

    @classmethod
    def get_var_name(cls, var_id: int) -> str | None:
        """The name of a variable, None where it has none."""
        return cls._variables.get(var_id)

    @classmethod
    def remove_duplicate_names(cls, variables: list[Any]) -> None:
        """Number the names of things that have the same one."""
        seen: Counter[str] = Counter()
        for var in variables:
            count = seen[var.name]
            seen[var.name] += 1
            if count:
                var.name = f"{var.name}_{count}"


__all__ = ["AutoNaming"]
