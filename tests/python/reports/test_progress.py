"""Progress bars: what a terminal gets, that nothing else gets anything, and that the work is the same."""

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import types

import pytest
from amanda.reports import progress
from amanda.reports.progress import Progress
from terminals import BAR, ERASED, HIDDEN, Terminal, percents, plain


@pytest.fixture
def terminal(monkeypatch):
    """Standard error is a terminal; bars are shown at once, and drawn each time."""
    made = Terminal()
    here = types.SimpleNamespace(stderr=made.file)  # pytest sets sys.stderr after fixtures have run
    monkeypatch.setattr(progress, "sys", here)
    monkeypatch.setattr(progress, "FIRST", 0)
    monkeypatch.setattr(progress, "PERIOD", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return made


def work(count=10, **options):
    with Progress("working", count, **options) as bar:
        for _ in range(count):
            bar.advance()


def test_a_bar_grows_to_the_end_and_is_erased(terminal):
    work(20)
    text = terminal.text()
    found = percents(text)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (5, 100)
    assert {total for _, _, total in BAR.findall(plain(text))} == {"20"}
    assert plain(text).startswith("\rworking ━") or plain(text).startswith("working ")
    assert re.search(r"20/20 \d:\d\d:\d\d 0:00:00 left", plain(text))
    assert text.endswith(ERASED)
    assert HIDDEN not in text


def test_the_time_that_is_left_is_in_proportion(terminal):
    shown = progress.bar("working", 8, began=1000)
    shown.get_time = shown.tasks[0]._get_time = lambda: 1200.0  # of both: a task has its own
    for done, left in [(0, None), (1, 1400), (3, 333), (8, 0)]:
        shown.update(shown.tasks[0].id, completed=done)
        with shown.console.capture() as drawn:
            shown.console.print(shown.get_renderable())
        found = re.findall(r"(\d):(\d\d):(\d\d) left", plain(drawn.get()))
        if left is None:
            assert not found
        else:
            ((hours, minutes, seconds),) = found
            assert int(hours) * 3600 + int(minutes) * 60 + int(seconds) == left


def test_parts_are_named_and_a_total_need_not_be_known(terminal):
    with Progress("working") as bar:
        for name in ("a [b]", "c"):
            bar.now(name)
            bar.advance()
    text = plain(terminal.text())
    assert "working: a [b] " in text
    assert re.search(r"working: c .*2/\? 0:00:00", text)
    assert "%" not in text
    assert "left" not in text


def test_short_work_and_quick_steps_draw_little(terminal, monkeypatch):
    monkeypatch.setattr(progress, "FIRST", 60)
    work()
    monkeypatch.setattr(progress, "FIRST", 0)
    monkeypatch.setattr(progress, "PERIOD", 60)
    work(1000)
    assert percents(terminal.text()) == [0, 100]  # the first one, and the last


def test_one_line_however_narrow_the_terminal_is(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    with Progress("working", 3) as bar:
        for _ in range(3):
            bar.now("a part with a long name")
            bar.advance()
    monkeypatch.setenv("COLUMNS", "24")
    work()
    text = terminal.text()
    assert text.count("\n") == text.count("\x1b[1A") == 2, "the ends"
    assert re.search(r"working: a part wi… ━{20} 100% 3/3 0:00:00 0:00:00 left", plain(text))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("wrong")])
def test_whatever_ends_the_work_erases_the_bar(terminal, error):
    def fail():
        with Progress("working", 3) as bar:
            bar.advance()
            raise error

    with pytest.raises((KeyboardInterrupt, ValueError)):
        fail()
    work()  # and another one can be shown
    text = terminal.text()
    assert text.count(ERASED) == 2
    assert percents(text)[0] == 33
    assert percents(text)[-1] == 100


def test_a_thread_draws_while_a_part_takes_long(terminal, monkeypatch):
    monkeypatch.setattr(progress, "TICK", 0.01)
    done = iter(range(100))
    with Progress("measuring", 100, done=lambda: next(done)):
        terminal.wait_for(lambda text: len(percents(text)) > 2)
    with Progress("ticking", 4, ticks=True) as bar:
        bar.advance()
        terminal.wait_for(lambda text: "ticking" in text)
    text = terminal.text()
    assert percents(text)[:3] == [0, 1, 2]
    assert percents(text)[-1] == 25
    assert text.count(ERASED) == 2


def test_the_bar_is_away_while_something_else_is_written(terminal):
    with Progress("working", 2) as bar:
        bar.advance()
        with bar.away():
            print("a line", file=terminal.file)
        bar.advance()
    text = terminal.text()
    assert f"{ERASED}a line\r\n" in text
    assert percents(text)[-1] == 100
    assert text.endswith(ERASED)


def test_one_bar_at_a_time(terminal):
    with Progress("outer", 1) as bar, Progress("inner", 5) as inner:
        inner.advance()
        bar.advance()
    text = terminal.text()
    assert "outer" in text
    assert "inner" not in text


@pytest.mark.parametrize(
    "why", ["show=False", "rank 1", "a process of multiprocessing", "a dumb terminal", "in a fork"]
)
def test_nothing_is_drawn(terminal, monkeypatch, why):
    options = {}
    if why == "show=False":
        options["show"] = False
    elif why == "rank 1":
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    elif why == "a process of multiprocessing":
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: multiprocessing)
    elif why == "a dumb terminal":
        monkeypatch.setenv("TERM", "dumb")
    if why == "in a fork":
        with Progress("working", 2) as bar:
            here = os.getpid()
            monkeypatch.setattr(os, "getpid", lambda: here + 1)  # what a fork sees
            bar.advance()
    else:
        work(**options)
    assert terminal.text() == ""


@pytest.mark.parametrize("stderr", [None, "closed", "a file"])
def test_standard_error_is_no_terminal(monkeypatch, tmp_path, stderr):
    monkeypatch.setattr(progress, "FIRST", 0)
    with open(tmp_path / "errors", "w") as file:
        monkeypatch.setattr(sys, "stderr", None if stderr is None else file)
        if stderr == "closed":
            file.close()
        work()
    assert (tmp_path / "errors").read_text() == ""


def test_the_work_goes_on_where_the_terminal_is_gone(terminal, monkeypatch):
    class Gone:
        def __getattr__(self, name):
            return getattr(terminal.file, name)

        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(progress.sys, "stderr", Gone())
    done = []
    with Progress("working", 3) as bar:
        for i in range(3):
            bar.advance()
            done.append(i)
    assert done == [0, 1, 2]
    assert terminal.text() == ""


WORK = """
import sys, time
sys.modules["torch"] = None  # this takes a second
from amanda.reports.progress import Progress
with Progress("working", 40) as bar:
    for i in range(40):
        time.sleep(0.05)
        bar.advance()
    print("rich" in sys.modules, flush=True)
    if sys.argv[1:]:
        time.sleep(60)
"""


def test_without_a_terminal_not_a_byte_is_written_and_nothing_imported():
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"False\n", b"")


def test_ctrl_c_leaves_the_terminal_as_it_was():
    made = Terminal()
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, "wait"],
        stdout=subprocess.PIPE,
        stderr=made.fd,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "PYTHON_COLORS": "0"},
    )
    with contextlib.closing(process.stdout):
        assert process.stdout.readline() == b"True\n"  # the work is done, the bar is there
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
    assert process.wait() == -signal.SIGINT
    text = made.text()
    assert percents(text)[-1] == 100
    _, after = text.split(ERASED)
    assert after.startswith("Traceback")
    assert after.endswith("KeyboardInterrupt\r\n")
    assert HIDDEN not in text
