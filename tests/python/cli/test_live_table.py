"""`amanda trace` on a terminal: the table is there while the program runs, and what the program writes is not touched."""

import os
import re
import subprocess
import sys

import pytest
from terminals import HIDDEN, Terminal, percents, plain

# A line that is written in parts, a progress bar's return, colours, and bytes that no Python object writes.
PROGRAM = """
import os, sys, time, torch
model = torch.nn.Linear(3, 1)
steps = 0
while GOES_ON:
    model(torch.ones(2, 3))
    steps += 1
    time.sleep(0.05)
    if steps == 3:
        sys.stdout.write("one \\x1b[31mred\\x1b[0m [b]li")
        sys.stdout.write("ne[/b]\\n10%\\r20%\\n")
        sys.stdout.flush()
        os.write(1, b"raw\\n")
print("steps", steps)
"""
WRITTEN = "one \x1b[31mred\x1b[0m [b]line[/b]\r\n10%\r20%\r\nraw\r\n"  # a terminal's line ends
COMMAND = "-m", "amanda", "trace", "-e", "linear: input.sum()", "program.py"
# At its end a program waits until what it does is shown.
WAITS = """
seen = "a comparison" if os.path.exists("one run") else "a recording"
open("one run", "w").close()
while not os.path.exists(seen):
    time.sleep(0.05)
"""
RECORDING = r"recording program\.py, 0 MB of results .* \d+/\? \d:\d\d:\d\d"
COMPARING = r"comparing program\.py .*\d+% +\d+/\d+ \d:\d\d:\d\d +\d:\d\d:\d\d left"
COUNTS = re.compile(r"\(no module\) +(\d+) +6 ")


@pytest.fixture
def on_terminal(tmp_path):
    """on_terminal(seen, stdout, command, program): what was written to a terminal and, if it is a pipe, to stdout.

    Once what `seen` looks for is on the terminal, there is a file of that name, for the program.
    """

    def run(seen, stdout=None, command=COMMAND, program=PROGRAM):
        (tmp_path / "program.py").write_text(program.replace("GOES_ON", "not os.path.exists('two tables')"))
        terminal = Terminal()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "xterm"}
        process = subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, env=environment, stderr=terminal.fd, stdout=stdout or terminal.fd
        )
        for name, is_there in seen.items():
            terminal.wait_for(is_there)
            (tmp_path / name).touch()
        out = (process.communicate()[0] or b"").decode()
        assert process.returncode == 0
        return terminal.text(), out

    return run


def has_two_tables(text):
    return len(set(COUNTS.findall(text))) > 1


def test_where_output_goes_elsewhere_the_table_stays_in_place_with_new_counts(on_terminal):
    terminal, out = on_terminal({"two tables": has_two_tables}, subprocess.PIPE)
    counts = list(map(int, COUNTS.findall(terminal)))
    assert len(set(counts)) > 1, "rows are updated"
    assert counts == sorted(counts)
    assert "\x1b[1A" in terminal, "the cursor goes up: the table is drawn over the last one"
    assert terminal.rstrip().endswith("\x1b[2K"), "and is erased at the end"
    assert HIDDEN not in terminal, "a process that is killed leaves a cursor"
    assert out.startswith(WRITTEN.replace("\r\n", "\n") + "steps "), "bytes of the program as they are"
    assert int(COUNTS.search(out)[1]) >= counts[-1]


def test_on_one_terminal_tables_are_printed_below_the_programs_lines(on_terminal):
    terminal, _ = on_terminal({"two tables": has_two_tables})
    first, *_, last = map(int, COUNTS.findall(terminal))
    assert WRITTEN in terminal
    assert f"steps {last}\r\n" in terminal
    assert first < last
    assert not re.search(r"\x1b\[\d*[A-KJ]", terminal), "nothing moves the cursor or erases"


def test_a_recording_and_a_comparison_show_how_far_they_are(on_terminal):
    command = "-m", "amanda", "diff", "program.py", "program.py"
    steps = "import torch; torch.manual_seed(0)\n" + PROGRAM.replace("GOES_ON", "steps < 25") + WAITS
    seen = {
        "a recording": lambda text: re.search(RECORDING, plain(text)),
        "a comparison": lambda text: re.search(COMPARING, plain(text)),
    }
    terminal, out = on_terminal(seen, subprocess.PIPE, command, steps)
    assert out.startswith(WRITTEN.replace("\r\n", "\n") + "steps ")
    assert percents(terminal)
    assert HIDDEN not in terminal
    assert terminal.endswith("\x1b[2K")
