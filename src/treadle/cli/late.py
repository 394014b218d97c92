"""Commands whose modules are imported when they are called: help and completion are quick."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command

_NUMBERS = {"int": "N", "float": "X"}
"""Placeholders of numbers in help; switches have nothing, texts their own words."""


def _plain(params: list[Any], context: Any) -> list[Any]:
    """Options whose help shows what to type, in place of types of Python."""
    for param in params:
        if isinstance(param, TyperArgument):
            vars(param)["display_type"] = lambda *_: None
        elif getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.metavar is None:
            # Typer before 0.20 has no such method, and words of its own.
            shown = getattr(param, "display_type", lambda _: "")(context).strip("<>")
            own = param.name.rpartition("_")[2].upper()
            param.metavar = shown if "|" in shown else _NUMBERS.get(shown.partition(" ")[0], own)
    return params


class Command(TyperCommand):
    """A command whose options are shown in one way."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Arguments and options, `--help` included."""
        return _plain(super().get_params(ctx), ctx)


@dataclass(frozen=True, slots=True)
class Lazy:
    """A command: the function `command` of a module, or a group of such.

    Attributes:
        name: of the command.
        summary: the first line of its help.
        panel: of the list of commands.
        settings: how its arguments are read.
        room: where its module is, below `treadle.cli`. One that has `COMMANDS` is a group of them.
    """

    name: str
    summary: str
    panel: str
    settings: dict[str, Any] = field(default_factory=dict)
    room: str = ""

    def listed(self) -> TyperCommand:
        """The command as a list shows it."""
        return TyperCommand(self.name, help=self.summary, rich_help_panel=self.panel)

    def module(self) -> Any:
        """Import the command's module."""
        room = f"{self.room}." if self.room else ""
        return importlib.import_module(f"treadle.cli.{room}{self.name}")

    def loaded(self) -> Any:
        """The command as it runs."""
        module = self.module()
        members: tuple[Lazy, ...] = getattr(module, "COMMANDS", ())
        if members:
            app = typer.Typer(
                cls=group_of(*members), rich_markup_mode="markdown", add_completion=False
            )
            app.callback()(module.command)
        else:
            app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
            app.command(self.name, cls=Command, context_settings=self.settings)(module.command)
        return get_command(app)


class LateGroup(TyperGroup):
    """A group with late commands besides those that are registered."""

    late: tuple[Lazy, ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # As lists show them; `resolve_command` gives those that run.
        self.commands = {**{c.name: c.listed() for c in self.late}, **self.commands}

    def get_params(self, ctx: Any) -> list[Any]:
        """Options of all commands."""
        return _plain(super().get_params(ctx), ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments begin with, and the others."""
        name, found, rest = super().resolve_command(ctx, args)
        late = next((c for c in self.late if c.name == name), None)
        return name, found if late is None else late.loaded(), rest


def group_of(*commands: Lazy) -> type[LateGroup]:
    """The class of a group with these commands."""
    return type("Commands", (LateGroup,), {"late": commands})
