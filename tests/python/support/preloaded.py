"""Commands as forks of an interpreter that has imported PyTorch and Amanda, which takes most of a command's time.

As a program: serves a socket, whose number is its argument. Each message is a command, with files for its output; the
answer is its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

WARNINGS = "-W", "error::RuntimeWarning"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def read_at_start() -> dict[str, str]:
    """What Python reads at its start: a fork has that of the server."""
    return {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}


class Preloaded:
    """`run` is `subprocess.run` of Python with these arguments: a script, or `-m` and a module. To be closed."""

    def __init__(self) -> None:
        self.settings = read_at_start()
        self._start()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, *WARNINGS, __file__, str(number)]
            self._server = subprocess.Popen(command, pass_fds=[number], env=os.environ | ONE_THREAD)

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        command = {"arguments": arguments, "folder": str(folder), "environment": os.environ | ONE_THREAD}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            socket.send_fds(self._socket, [json.dumps(command).encode()], [out.fileno(), errors.fileno()])
            status = self._status()
            out.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(arguments, status, out.read(), errors.read())

    def _status(self) -> int:
        try:
            return int(self._socket.recv(100))
        except BaseException:  # the test has taken too long: the answer would be taken for that of the next command
            self._server.kill()
            self.close()
            self._start()
            raise

    def close(self) -> None:
        self._socket.close()
        self._server.wait()


def next_command(connection: socket.socket) -> dict | None:
    """In a fork, which writes to the command's files; None in the server, where no more will come."""
    while True:
        message, files, *_ = socket.recv_fds(connection, 1 << 20, 2)
        if not message:
            return None
        child = os.fork()
        if child == 0:
            connection.close()
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
                os.close(file)
            return json.loads(message)
        for file in files:
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(str(status).encode())


def serve() -> None:
    import amanda.cli.main  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    gc.collect()
    gc.freeze()  # at its end, a fork would look at all these objects, and so copy them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = next_command(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        os.environ.clear()
        os.environ.update(command["environment"])
        os.chdir(command["folder"])
        run(*command["arguments"])


def run(*arguments: str) -> None:
    """As Python does where these are its own."""
    if arguments[0] == "-m":
        sys.argv[1:] = arguments[2:]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(arguments[1])
    else:
        sys.argv[:] = arguments
        sys.path[0] = os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve()
