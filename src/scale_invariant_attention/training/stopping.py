"""Asked to stop: signals that end a training between two steps, not within one."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopRequest:
    """While it is open, SIGTERM and SIGINT are noted; a second SIGINT interrupts as ever.

    `notice` is called with what is going to happen, when the first of them comes.

    >>> with StopRequest(notice=print) as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.requested
    Stopping after this step, to save it.
    True
    """

    def __init__(self, notice: Callable[[str], object] = lambda text: None) -> None:
        self.requested = False
        self._notice = notice
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Signals belong to the main thread; a training in another one is stopped by others.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested = True
            self._notice("Stopping after this step, to save it.")
