"""Programs of several processes."""

import subprocess
import sys

from repository import environment as environment_of_programs


def run_ranks(program, folder, count, *arguments, command=()):
    """The outputs of a program in so many processes, with RANK and WORLD_SIZE; it may import the files in this folder."""
    (folder / "program.py").write_text(program)
    processes = []
    for rank in range(count):
        environment = environment_of_programs() | {"RANK": str(rank), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
        whole = [sys.executable, *command, "program.py", *arguments]
        processes.append(
            subprocess.Popen(
                whole, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    done = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * count, [errors for _, errors in done]
    return [output for output, _ in done]


def line(output, word):
    """What a program has printed after this word."""
    return eval(next(line for line in output.splitlines() if line.startswith(word + " ")).removeprefix(word + " "))
