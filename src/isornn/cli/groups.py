"""Groups of commands: a command that is not in one is refused with those that are."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from isornn.cli.options import OptionNeeded


class Group(TyperGroup):
    """A command that is unknown or not given is refused with the names of all."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            raise OptionNeeded("COMMAND", f"it is one of {', '.join(self.commands)}")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            # Not by isornn.cells.errors.suggested, as a mistyped command is not to wait for torch.
            close = "".join(f"did you mean {name}? " for name in get_close_matches(args[0].lower(), self.commands, n=1))
            allowed = f"{args[0]!r} is not one of {', '.join(self.commands)}"
            raise typer.BadParameter(close + allowed, param_hint="COMMAND")
        return super().resolve_command(ctx, args)
