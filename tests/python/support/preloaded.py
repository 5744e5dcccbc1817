"""Commands as forks of an interpreter that has imported PyTorch and Amanda, which takes most of a command's time.

As a program: serves a socket, whose number is its argument. Each message is a list of commands, with two files for the
output of each; the answer is their exit statuses.
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
import types
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

WARNINGS = "-W", "error::RuntimeWarning"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
MOST = 8  # commands at once


def read_at_start() -> dict[str, str]:
    """What Python reads at its start: a fork has that of the server."""
    return {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}


class Preloaded:
    """`run` is `subprocess.run` of Python with these arguments: a script, `-m` and a module, or `-c` and code.

    To be closed.
    """

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
        (done,) = self.run_together([arguments], [{}], folder=folder)
        return done

    def run_together(
        self, commands: Sequence[Sequence[str]], environments: Sequence[dict[str, str]], *, folder: Path
    ) -> list[subprocess.CompletedProcess[str]]:
        """Starts all of them, each with additions to the environment, and waits for all."""
        described = [
            {"arguments": arguments, "folder": str(folder), "environment": os.environ | ONE_THREAD | added}
            for arguments, added in zip(commands, environments, strict=True)
        ]
        with ExitStack() as files:
            outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2 * len(described))]
            socket.send_fds(self._socket, [json.dumps(described).encode()], [file.fileno() for file in outputs])
            statuses = self._statuses()
            for file in outputs:
                file.seek(0)
            texts = [file.read() for file in outputs]
        return [
            subprocess.CompletedProcess(arguments, status, out, errors)
            for arguments, status, out, errors in zip(commands, statuses, texts[::2], texts[1::2], strict=True)
        ]

    def _statuses(self) -> list[int]:
        try:
            return json.loads(self._socket.recv(1000))
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
        message, files, *_ = socket.recv_fds(connection, 1 << 20, 2 * MOST)
        if not message:
            return None
        children = []
        for command, outputs in zip(json.loads(message), zip(files[::2], files[1::2], strict=True), strict=True):
            child = os.fork()
            if child == 0:
                connection.close()
                for number, file in enumerate(outputs, 1):
                    os.dup2(file, number)
                for file in files:
                    os.close(file)
                return command
            children.append(child)
        for file in files:
            os.close(file)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        connection.sendall(json.dumps(statuses).encode())


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
    elif arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        sys.path[0] = ""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = arguments
        sys.path[0] = os.path.dirname(arguments[0])
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    serve()
