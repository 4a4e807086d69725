"""A progress bar of one line, drawn on a terminal and wiped when the work is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO, TypeAlias

#: Called by the library as ``progress(what, done, total)``; ``total`` 0 means unknown.
ProgressCallback: TypeAlias = Callable[[str, int, int], None]


class ProgressBar:
    """Draws ``what [####----] 3/7`` over itself at each call.

    Args:
        stream: A terminal.
        width: Characters between the brackets.
        interval: Seconds that must pass between two drawings of one stage.
        clock: Returns seconds; replaced in tests.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        width: int = 30,
        interval: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._width = width
        self._interval = interval
        self._clock = clock
        self._stage: str | None = None
        self._drawn_at = 0.0
        self._drawn_length = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Draw the bar, unless it was drawn a moment ago for the same stage."""
        now = self._clock()
        if what == self._stage and done < total and now - self._drawn_at < self._interval:
            return
        self._stage, self._drawn_at = what, now
        if total > 0:
            filled = self._width * min(done, total) // total
            line = f"{what} [{'#' * filled}{'-' * (self._width - filled)}] {done}/{total}"
        else:
            line = f"{what} …"
        self._draw(line)

    def clear(self) -> None:
        """Wipe the line."""
        if self._drawn_length:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()

    def _draw(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._drawn_length))
        self._stream.flush()
        self._drawn_length = len(line)
