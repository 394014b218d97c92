"""Commands whose modules are imported when they are called: help and completion are quick."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


@dataclass(frozen=True, slots=True)
class Late:
    """A command: the function `command` of the module `treadle.cli.<name>`.

    Attributes:
        name: of command and module.
        summary: the first line of its help.
        panel: of the list of commands.
        settings: how its arguments are read.
    """

    name: str
    summary: str
    panel: str
    settings: dict[str, Any] = field(default_factory=dict)

    def listed(self) -> TyperCommand:
        """The command as a list shows it."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel)

    def loaded(self) -> Any:
        """The command as it runs."""
        module: Any = importlib.import_module(f"treadle.cli.{self.name}")
        app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
        app.command(self.name, context_settings=self.settings)(module.command)
        return get_command(app)


class LateGroup(TyperGroup):
    """A group with late commands besides those that are registered."""

    late: tuple[Late, ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # As lists show them; `resolve_command` gives those that run.
        self.commands = {**{c.name: c.listed() for c in self.late}, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments begin with, and the others."""
        name, found, rest = super().resolve_command(ctx, args)
        late = next((c for c in self.late if c.name == name), None)
        return name, found if late is None else late.loaded(), rest


def group_of(*commands: Late) -> type[LateGroup]:
    """The class of a group with these commands."""
    return type("Commands", (LateGroup,), {"late": commands})
