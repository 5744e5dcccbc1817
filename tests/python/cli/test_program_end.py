"""Programs in every state that they can end in: they behave as under Python, and what was found is handed out."""

import os
import py_compile
import re
import signal
import subprocess
import sys
import textwrap

import pytest

# A command that reports nothing of interest.
COMMAND = """
import os
import sys
sys.modules["torch"] = None  # this takes a second
import amanda
from amanda.driver import registry
registry.absence = lambda: None  # torch is there, and the command does not have to complain
from amanda.cli.program import Program
from amanda.cli.command_output import run_and_report

def report(made, status):
    with made.part("print"):
        print("report", status)
    with open(reports, "a") as file:
        file.write("one\\n")

reports = os.path.abspath("reports")
arguments = sys.argv[1:]
program = Program.of_module(arguments[1:]) if arguments[0] == "-m" else Program.of_script(arguments)
run_and_report(program, amanda.apply(amanda.Tool()), report)
"""


@pytest.fixture
def both(tmp_path):
    """both(*arguments): (what Python gave, what the command gave), each (status, standard output, standard error).

    The report is removed from the command's output, after a check that there is exactly one.
    """
    (tmp_path / "command.py").write_text(COMMAND)

    def of(*command):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, input="typed\n")
        return done.returncode, done.stdout, done.stderr

    def run(*arguments, program=None, printed=True):
        if program is not None:
            (tmp_path / "script.py").write_text(textwrap.dedent(program))
        alone = of(*arguments)
        status, output, errors = of("command.py", *arguments)
        assert (tmp_path / "reports").read_text() == "one\n"
        if printed:
            before, marked, after = output.partition("report ")
            assert marked
            output = before + after.partition("\n")[2]
        return alone, (status, output, errors)

    return run


PROGRAMS = {
    "falls off its end": "import sys; print(sys.argv, sys.path[0], __file__, __spec__, __cached__, sorted(globals()))",
    "an exception in a function": "def f(): 1 / 0\nf()",
    "a chain of exceptions": "try:\n  1 / 0\nexcept ZeroDivisionError as error:\n  raise KeyError('x') from error",
    "an exit with a text": "import sys; sys.exit('text')",
    "an exit with nothing": "import sys; sys.exit('')",
    "an exit with 300": "import sys; sys.exit(300)",
    "an exit with True": "import sys; sys.exit(True)",
    "an exit with a list": "import sys; sys.exit([1])",
    "exit(0)": "exit(0)",
    "os._exit": "import os, sys; print('lost'); print('kept', file=sys.stderr); os._exit(5)",
    "os._exit on a thread": """
        import os, threading
        threading.Thread(target=lambda: os._exit(6)).start()
        threading.Event().wait()
    """,
    "SIGTERM": "import os; print('lost'); os.kill(os.getpid(), 15)",
    "SIGTERM that it handles": """
        import os, signal, sys
        signal.signal(15, lambda *_: sys.exit(9))
        os.kill(os.getpid(), 15)
    """,
    "SIGTERM with a lock held": """
        import os, threading
        with threading.Lock():
            os.kill(os.getpid(), 15)
    """,
    "Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "Ctrl-C that it handles": """
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            print("interrupted")
    """,
    "a hook for exceptions": """
        import sys
        sys.excepthook = lambda kind, *rest: print("hook", kind.__name__, file=sys.stderr)
        raise ValueError
    """,
    "a hook that fails": """
        import sys
        def hook(*error): raise TypeError("in hook")
        sys.excepthook = hook
        raise ValueError(1)
    """,
    "a hook that exits": "import sys\nsys.excepthook = lambda *error: sys.exit(4)\nraise ValueError",
    "functions at exit": "import atexit, sys\natexit.register(lambda: print('bye', sys.last_type))\nraise ValueError",
    "a thread that ends later": """
        import threading, time
        def later():
            time.sleep(0.2)
            print("thread")
        threading.Thread(target=later).start()
        print("main")
    """,
    "a fork that exits": """
        import os, sys
        if child := os.fork():
            print(os.waitpid(child, 0)[1], flush=True)
        else:
            sys.exit("the child's")
    """,
    "a fork that fails": """
        import os
        if child := os.fork():
            print(os.waitpid(child, 0)[1], flush=True)
        else:
            raise KeyboardInterrupt
    """,
    "a fork that ends at once": """
        import os
        if child := os.fork():
            print(os.waitpid(child, 0)[1], flush=True)
        else:
            os._exit(3)
    """,
    "a fork that is terminated": """
        import os, time
        if child := os.fork():
            os.kill(child, 15)
            print(os.waitpid(child, 0)[1], flush=True)
        else:
            time.sleep(60)
    """,
    "spawned processes that import it": """
        import multiprocessing
        class OfMain:
            pass
        def work(value):
            return type(value).__module__
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [OfMain()]))
    """,
    "its standard output is replaced": "import io, sys; print('seen', flush=True); sys.stdout = io.StringIO()",
    "its standard output is wrapped again": """
        import io, sys
        sys.stdout = io.TextIOWrapper(sys.stdout.detach())
        print("wrapped")
    """,
    "its standard error is closed": "import sys; sys.stderr.close()",
    "its standard input is read": "print(input())",
    "its folder is removed": "import os, tempfile\nwith tempfile.TemporaryDirectory() as f: os.chdir(f)",
    "__main__ is imported": "import __main__, pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "nothing": "",
    "a mistake in its syntax": "x = = 1",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_as_under_python(both, name):
    alone, reported = both("script.py", "-x", program=PROGRAMS[name])
    assert reported == alone


def test_output_that_is_closed_is_told_of(both):
    alone, (status, output, errors) = both("script.py", program="import sys; sys.stdout.close()", printed=False)
    assert alone == (status, output, "") == (0, "", "")
    assert errors == "amanda: can't print what was found: standard output is closed or broken\n"


@pytest.fixture
def package(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("import sys\nprint(sys.argv)\n")
    (tmp_path / "package/part.py").write_text("VALUE = 1\n")
    (tmp_path / "package/__main__.py").write_text(
        "import atexit, sys, __main__\nfrom .part import VALUE\n"
        "print(sys.argv, sys.path[0], __name__, __package__, __spec__.name, __file__, VALUE)\n"
        "atexit.register(lambda: print(sys.modules['__main__'] is __main__))\n"
        "raise ValueError\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "package", "-x"),
        ("-m", "package.part"),
        ("-m", "package.other"),
        ("-m", "no_package"),
        ("-m", "package.__main__"),
    ],
)
def test_modules_run_as_under_python(both, package, arguments):
    alone, reported = both(*arguments)
    assert reported == alone


def test_a_folder_with_a_main_runs_as_under_python(both, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/helper.py").write_text("print('helper')")
    (tmp_path / "folder/__main__.py").write_text("import sys, helper\nprint(sys.argv, sys.path[0], __file__)")
    alone, reported = both("folder", "-x")
    assert reported == alone
    assert alone[0] == 0


def test_compiled_code_runs(both, tmp_path):
    (tmp_path / "script.py").write_text("print(__file__, __cached__, __loader__, __spec__)\n1 / 0")
    py_compile.compile(tmp_path / "script.py", tmp_path / "script.pyc")
    (tmp_path / "script.py").unlink()
    alone, reported = both("script.pyc")
    assert normal(reported) == normal(alone)
    assert alone[0] == 1


def normal(done):
    """Without addresses of objects."""
    return done[0], *(re.sub(" at 0x[0-9a-f]+", "", text) for text in done[1:])


def test_parts_of_a_report_do_not_stop_each_other(capsys):
    from amanda.cli.command_output import Report

    made = Report()
    with made.part("write 'a.json'"):
        raise OSError(28, "No space left on device")
    with made.part("print the table"):
        print("table")
    with made.part("print another"):
        raise KeyError("a mistake")
    told = capsys.readouterr()
    assert told.out == "table\n"
    first, *traceback, last = told.err.splitlines()
    assert first == "amanda: can't write 'a.json': [Errno 28] No space left on device"
    assert (traceback[0], last) == ("Traceback (most recent call last):", "amanda: can't print another: 'a mistake'")
    assert made.status == 2


def test_a_reader_that_has_seen_enough(tmp_path):
    (tmp_path / "command.py").write_text(COMMAND)
    (tmp_path / "script.py").write_text("")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "command.py", "script.py"], cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_once_more_while_results_are_printed(tmp_path):
    (tmp_path / "command.py").write_text(
        COMMAND.replace('print("report", status)', "import time; print('printing', flush=True); time.sleep(60)")
    )
    (tmp_path / "script.py").write_text("print('ready', flush=True)\nimport time; time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "command.py", "script.py"],
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for line in ("ready\n", "printing\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGINT
    assert errors.endswith("KeyboardInterrupt\namanda: interrupted before all results were handed out\n")
