"""Programs that fail before an operator runs: no command says that it found nothing."""

import subprocess
import sys

import pytest

COMMANDS = {
    "check": "nothing was looked at: no operator ran that ",
    "flops": "nothing was counted: no operator ran",
    "gradients": "no backward pass was seen until the program failed, in 0 operators",
    "inplace": 'no backward pass raised "modified by an inplace operation" until the program failed, in 0 operators',
    "ls": "no operators ran",
    "memory": "no operator ran whose memory could be measured",
    "nan": "no NaN was produced until the program failed, in 0 results of 0 operators",
    "profile": "no operator was seen",
    "run -t statistics": "0 operators ran",
    "watch": "no step was looked at",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_that_fails_at_its_first_import(command, tmp_path):
    (tmp_path / "early.py").write_text("import nothing_here\n")
    run = [sys.executable, "-m", "amanda", *command.split(), "early.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert "ModuleNotFoundError: No module named 'nothing_here'" in done.stderr
    assert COMMANDS[command] in done.stdout
    assert "─" not in done.stdout  # of a table's heading
    assert done.returncode != 0
