"""The command ``isornn``, and ``python -m isornn``."""

import sys

from isornn.extras import named


def main() -> None:
    """Run the command line; where what it needs is not installed, a line names the extra."""
    try:
        from isornn.cli import main as commands
    except ModuleNotFoundError as error:
        if named(error) is error:
            raise
        print(f"isornn: {named(error)}", file=sys.stderr)
        sys.exit(2)
    commands()


if __name__ == "__main__":
    main()
