"""Lines that say which rank they come from."""

from __future__ import annotations

import io
import sys
import threading
from typing import BinaryIO, TextIO


class RankStream(io.TextIOBase):
    """Writes to another stream, whole lines at a time, each behind a prefix.

    Ranks share one terminal; parts of a line would come out inside of another rank's. What a line
    was before the last carriage return, as progress bars write it, is left out.
    """

    def __init__(self, target: TextIO, prefix: str) -> None:
        super().__init__()
        self._target = target
        self.prefix = prefix
        self._rest = ""
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the other stream."""
        return self._target.encoding

    @property
    def buffer(self) -> BinaryIO:
        """Buffer of the other stream, which bytes go to as they are."""
        return self._target.buffer

    def writable(self) -> bool:
        """Return True: lines can always be written."""
        return True

    def fileno(self) -> int:
        """Number of the other stream's file."""
        return self._target.fileno()

    def write(self, text: str) -> int:
        """Write the lines that are complete by now; how long the text is."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if lines:
                shown = (line.rstrip("\r").rpartition("\r")[2] for line in lines)
                self._target.write("".join(f"{self.prefix}{line}\n" for line in shown))
                self._target.flush()
        return len(text)

    def flush(self) -> None:
        """Flush the other stream; a line that is not complete waits for its end."""
        self._target.flush()

    def finish(self) -> None:
        """End a line that is not complete."""
        if self._rest:
            self.write("\n")


def name_lines(rank: int) -> None:
    """Prefix all lines that this process prints from now on with its rank."""
    prefix = f"[rank {rank}] "
    sys.stdout, sys.stderr = RankStream(sys.stdout, prefix), RankStream(sys.stderr, prefix)


def rename_lines(rank: int) -> bool:
    """Change the rank that printed lines begin with; returns whether they began with one."""
    named = [s for s in (sys.stdout, sys.stderr) if isinstance(s, RankStream)]
    for stream in named:
        stream.prefix = f"[rank {rank}] "
    return bool(named)


def finish_lines() -> None:
    """End lines that are not complete, before the process ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, RankStream):
            stream.finish()
