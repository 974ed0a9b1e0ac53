"""A command in a terminal of its own: a real pty, keys go in, what the screen gets is read back."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence

from tests.peers.processes import ROOT, environment, patience

#: orders to a terminal: colours, cursor, modes; and what is no character.
_ORDERS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()=>].?|[\r\x08]")
#: asks where the cursor is.
_WHERE = b"\x1b[6n"
#: makes stdin the terminal of this session, so that its Ctrl-C is a signal, and runs the command.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "ringline", *sys.argv[1:]])
"""


class Terminal:
    """A running command; `shown` is the text that it wrote, without orders to the terminal."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self._raw = b""
        self._seen = 0

    @property
    def shown(self) -> str:
        """All text so far."""
        return _ORDERS.sub("", self._raw.decode("utf-8", "replace"))

    def type(self, keys: str) -> None:
        """Press keys: \\r is Enter, \\x03 Ctrl-C, \\x04 Ctrl-D."""
        os.write(self._screen, keys.encode())

    def enter(self, keys: str, *, end: str = "\r") -> None:
        """Press keys and Enter at the next prompt, which is `> ` at the beginning of a line."""
        self.wait_for(r"\n>")
        self.type(keys + end)

    def wait_for(self, pattern: str, seconds: float = 120.0) -> re.Match[str]:
        """Wait for text after what was waited for before."""
        deadline = time.monotonic() + patience(seconds)
        while not (match := re.compile(pattern).search(self.shown, self._seen)):
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.shown[self._seen :]!r}"
            if not self._read(min(left, 1.0)):
                raise AssertionError(f"it ended before {pattern!r}: {self.shown!r}")
        self._seen = match.end()
        return match

    def finish(self, seconds: float = 120.0) -> int:
        """Wait for its end; its exit code."""
        deadline = time.monotonic() + patience(seconds)
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it goes on: {self.shown!r}"
        return self.process.wait(patience(seconds))

    def _read(self, seconds: float) -> bool:
        """Take what there is; False: the command has closed the terminal."""
        if not select.select([self._screen], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._screen, 65536)
        except OSError:  # EIO: nobody has the other end open
            return False
        asked = self._raw.count(_WHERE)
        self._raw += piece
        # A terminal is asked where its cursor is, and answers; the question may come in two pieces.
        for _ in range(self._raw.count(_WHERE) - asked):
            os.write(self._screen, b"\x1b[1;1R")
        return bool(piece)


@contextlib.contextmanager
def in_terminal(arguments: Sequence[object], env: Mapping[str, str]) -> Iterator[Terminal]:
    """Run `ringline ARGUMENTS` as a shell does it: Ctrl-C goes to all that it started there."""
    screen, line = pty.openpty()
    termios.tcsetwinsize(line, (50, 160))
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *map(str, arguments)],
        cwd=ROOT,
        start_new_session=True,
        env=environment({"TERM": "xterm", **env}),
        stdin=line,
        stdout=line,
        stderr=line,
    )
    os.close(line)
    terminal = Terminal(process, screen)
    try:
        yield terminal
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        os.close(screen)
        process.wait()
