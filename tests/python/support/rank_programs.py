"""Programs of several processes."""

from collections.abc import Callable
from pathlib import Path

from preloaded import Preloaded
from repository import ROOT

# The folders from which a program imports what tests share, and the tests.
PATH = f"import os, sys; sys.path[1:1] = {[str(Path(__file__).parent), str(ROOT)]}\n"
# A group's thread may still release a Python object: at the end of the interpreter that would abort the process.
END = "\nsys.stdout.flush(); sys.stderr.flush(); os._exit(0)\n"


class Ranks:
    """Runs a program, or a function of a test, in so many processes, with RANK and WORLD_SIZE."""

    def __init__(self, preloaded: Preloaded, folder: Path) -> None:
        self._preloaded, self._folder = preloaded, folder

    def program(self, program: str, count: int, *arguments: str, command: tuple[str, ...] = ()) -> list[str]:
        """What each process printed. The program may import the files in this folder."""
        (self._folder / "program.py").write_text(PATH + program + ("" if command else END))
        return self._run([*command, "program.py", *arguments], count)

    def function(self, function: Callable[..., None], count: int, *arguments: str) -> None:
        """function(rank, *arguments) in each: a function at the top of a file of tests."""
        (self._folder / "program.py").write_text(
            f"{PATH}import importlib\n"
            f"function = importlib.import_module({function.__module__!r}).{function.__name__}\n"
            f"function(int(os.environ['RANK']), *sys.argv[1:]){END}"
        )
        self._run(["program.py", *arguments], count)

    def _run(self, command: list[str], count: int) -> list[str]:
        environments = [{"RANK": str(rank), "WORLD_SIZE": str(count)} for rank in range(count)]
        done = self._preloaded.run_together([command] * count, environments, folder=self._folder)
        assert [process.returncode for process in done] == [0] * count, [process.stderr for process in done]
        return [process.stdout for process in done]


def line(output, word):
    """What a program has printed after this word."""
    return eval(next(line for line in output.splitlines() if line.startswith(word + " ")).removeprefix(word + " "))
