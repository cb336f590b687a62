"""One web page of runs and records, which needs no network and no other file, and an explorer on it."""

from .entries import Entry, Measurement
from .page import render_page

__all__ = ["Entry", "Measurement", "render_page"]
