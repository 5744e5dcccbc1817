"""A terminal for tests: a pseudo terminal, and what was written to it."""

import os
import pty
import re
import threading
import time

BAR = re.compile(r"(\d+)% +(\d+)/(\d+) ")  # percent, done, total
ERASED = "\r\n\r\x1b[1A\x1b[2K"  # the cursor is where the bar began
HIDDEN = "\x1b[?25l"  # the cursor


class Terminal:
    """`file` is a text file that is a terminal, `fd` its descriptor; `text()` closes it, and is all that was written."""

    def __init__(self):
        self._ours, self.fd = pty.openpty()
        self.file = os.fdopen(self.fd, "w", closefd=True)
        self._parts = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        try:
            while part := os.read(self._ours, 65536):
                self._parts.append(part)
        except OSError:  # how Linux says that the other end is closed
            pass

    def so_far(self):
        return b"".join(self._parts).decode(errors="replace")

    def wait_for(self, is_there):
        """Until this is true of what was written."""
        start = time.monotonic()
        while not is_there(self.so_far()):
            assert time.monotonic() < start + 300, f"this was not written in 5 minutes: {self.so_far()}"
            time.sleep(0.01)

    def text(self):
        self.file.close()
        self._reader.join(60)
        os.close(self._ours)
        return self.so_far()


def plain(text):
    """Without what colours it or moves the cursor; what was drawn over each other is in one line."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def percents(text):
    return [int(percent) for percent, _, _ in BAR.findall(plain(text))]
