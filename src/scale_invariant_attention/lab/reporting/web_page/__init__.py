"""One self-contained web page of runs and records, with an explorer of attention by distance."""

from ._page import render_page, write_report

__all__ = ["render_page", "write_report"]
