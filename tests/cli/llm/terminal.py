"""Commands in a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Sequence

KEYS = Sequence[tuple[str, str]]


def in_terminal(*arguments: object, keys: KEYS = (), **environment: str) -> tuple[str, int]:
    """What `treadle llm` shows, and its exit status.

    Args:
        keys: what is typed once some text has been shown behind the last such text; any for "".
    """
    command = [sys.executable, "-m", "treadle", "llm", *map(str, arguments)]
    child, terminal = pty.fork()
    if child == 0:
        os.environ.pop("COLUMNS", None)
        os.execve(command[0], command, {**os.environ, "TERM": "xterm", **environment})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown, seen, waiting, end = "", 0, list(keys), time.monotonic() + 90
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                piece = os.read(terminal, 1 << 16)
            except OSError:  # nobody writes any more
                break
            shown += piece.decode(errors="replace")
        if waiting and len(shown) > seen and (at := shown.find(waiting[0][0], seen)) >= 0:
            seen = at + len(waiting[0][0])
            os.write(terminal, waiting.pop(0)[1].encode())
    os.close(terminal)
    return shown, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
