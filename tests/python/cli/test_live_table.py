"""`amanda trace` on a terminal: the table is there while the program runs, and what the program writes is not touched."""

import os
import pty
import re
import subprocess
import sys

import pytest

# A line that is written in parts, a progress bar's return, colours, and bytes that no Python object writes.
PROGRAM = """
import os, sys, time, torch
model = torch.nn.Linear(3, 1)
started = time.monotonic()
steps = 0
while time.monotonic() - started < SECONDS:
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
COUNTS = re.compile(r"\(no module\) +(\d+) +6 ")


@pytest.fixture
def on_terminal(tmp_path):
    """on_terminal(seconds, stdout): what was written to a terminal and, if it is a pipe, to standard output."""

    def run(seconds, stdout=None):
        (tmp_path / "program.py").write_text(PROGRAM.replace("SECONDS", str(seconds)))
        ours, theirs = pty.openpty()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "xterm"}
        process = subprocess.Popen(
            [sys.executable, *COMMAND], cwd=tmp_path, env=environment, stderr=theirs, stdout=stdout or theirs
        )
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # how Linux says that the other end is closed
            pass
        out = (process.communicate(timeout=60)[0] or b"").decode()
        assert process.returncode == 0
        os.close(ours)
        return b"".join(parts).decode(), out

    return run


def test_where_output_goes_elsewhere_the_table_stays_in_place_with_new_counts(on_terminal):
    terminal, out = on_terminal(2, subprocess.PIPE)
    counts = list(map(int, COUNTS.findall(terminal)))
    assert len(set(counts)) > 1, "rows are updated"
    assert counts == sorted(counts)
    assert "\x1b[1A" in terminal, "the cursor goes up: the table is drawn over the last one"
    assert terminal.rstrip().endswith("\x1b[2K"), "and is erased at the end"
    assert out.startswith(WRITTEN.replace("\r\n", "\n") + "steps "), "bytes of the program as they are"
    assert int(COUNTS.search(out)[1]) >= counts[-1]


def test_on_one_terminal_tables_are_printed_below_the_programs_lines(on_terminal):
    terminal, _ = on_terminal(1.7)
    first, last = map(int, COUNTS.findall(terminal))
    assert WRITTEN in terminal
    assert f"steps {last}\r\n" in terminal
    assert first < last
    assert not re.search(r"\x1b\[\d*[A-KJ]", terminal), "nothing moves the cursor or erases"
