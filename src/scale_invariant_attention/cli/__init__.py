"""The command `sia`: parse, call, print."""

from .commands import app, main

__all__ = ["app", "main"]
