"""The command ``isornn``, and ``python -m isornn``."""

from __future__ import annotations

import sys
from collections.abc import Callable

from isornn.extras import named
from isornn.interrupts import interrupts_kept


def main() -> None:
    """Run the command line; where what it needs is not installed, a line names the extra."""
    try:
        commands = _commands()
        commands()
    except KeyboardInterrupt:  # while modules are imported, or options read
        print("isornn: interrupted", file=sys.stderr)
        sys.exit(130)


def _commands() -> Callable[[], None]:
    try:
        with interrupts_kept():
            from isornn.cli import main as commands
    except ModuleNotFoundError as error:
        if named(error) is error:
            raise
        print(f"isornn: {named(error)}", file=sys.stderr)
        sys.exit(2)
    return commands


if __name__ == "__main__":
    main()
