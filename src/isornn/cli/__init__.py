"""The commands of the shell."""

from isornn.cli.app import app, main

__all__ = ["app", "main"]
