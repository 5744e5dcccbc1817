"""The help of every command has an example, and the example is right."""

import argparse
import contextlib
import json
import re
import shlex
import subprocess
import sys

import amanda_command
import pytest
from amanda.cli import guide
from amanda.cli.main import COMMANDS, main, parser


def commands():
    (action,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return action.choices


def test_there_is_one_command_for_each_module():
    assert len(commands()) == len(COMMANDS)
    assert [command.load().name for command in COMMANDS] == [command.name for command in COMMANDS]


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [([], []), (["--help"], []), (["nan", "--help"], ["nan"]), (["help", "slow"], ["help"])],
)
def test_a_command_is_imported_when_it_is_given(arguments, commands):
    program = (
        "import sys, amanda_command; sys.argv = ['amanda', *sys.argv[1:]]\n"
        "try: amanda_command.main()\n"
        "except SystemExit: pass\n"
        "print(*[name for name in sys.modules if name.startswith('amanda')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    names = {command.name for command in COMMANDS}
    assert [name for name in loaded if name.removeprefix("amanda.cli.") in names] == [
        f"amanda.cli.{c}" for c in commands
    ]
    if commands != ["nan"]:  # the texts need no tool
        assert not [
            name for name in loaded if name.startswith(("amanda.tools", "amanda.toolkit", "amanda.distributed"))
        ]


@pytest.mark.parametrize("name", commands())
def test_the_example_of_the_help_is_understood(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    program, command, *arguments = shlex.split(text.partition(" example: ")[2])
    assert (program, command) == ("amanda", name)
    given = parser().parse_args([command, *arguments])
    if name in ("report", "help"):
        return  # it runs no program
    assert given.program, "the example ends with a script"
    assert not any(argument.startswith("-") for argument in given.program), "all options are the command's"


def test_alone_it_leads_from_problems_to_commands(capsys):
    main([])
    printed = capsys.readouterr().out
    commands = re.findall(r"  amanda (\w+) ", printed)
    assert set(commands) == {command.name for command in COMMANDS} - {"help"}


@pytest.mark.parametrize("task", guide.TASKS, ids=lambda task: task.problem)
def test_each_command_of_the_guide_is_understood(task):
    _, *arguments = shlex.split(task.command)
    parser().parse_args(arguments)


@pytest.mark.parametrize(
    ("problem", "command"),
    [
        ("my loss is NaN", "nan"),
        ("my parameter has no gradient", "gradients"),
        ("grad is None", "gradients"),
        ("CUDA out of memory", "memory"),
        ("memory grows every step", "memory"),
        ("training is slow", "profile"),
        ("which lines synchronize", "ls"),
        ("gradients explode", "watch"),
        ("two runs differ", "diff"),
        ("torch.compile gives wrong results", "diff"),
        ("number of FLOPs", "flops"),
        ("print activations", "trace"),
        ("quantization", "run"),
    ],
)
def test_help_finds_the_command_for_a_problem(capsys, problem, command):
    main(["help", *problem.split()])
    first, *_ = capsys.readouterr().out.splitlines()
    assert f"  amanda {command} " in first


def test_help_about_something_unknown_lists_all(capsys):
    main(["help", "xyzzy"])
    printed = capsys.readouterr().out
    assert printed.startswith("nothing is known of 'xyzzy'; what there is:\n")
    assert printed.count("  amanda ") == len(guide.TASKS)


def test_a_mistake_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "--by", "colour", "x.py"])
    error = capsys.readouterr().err
    assert error.startswith("amanda profile: error: argument --by: invalid choice: 'colour' (choose from ")
    assert error.count("\n") == 1


def test_help_imports_no_framework(capsys, monkeypatch):
    """A framework takes seconds. The texts are those of a process that has imported it."""
    monkeypatch.setenv("COLUMNS", "80")
    asked = [[], ["help"], ["help", "loss", "is", "nan"], ["-h"], *([name, "--help"] for name in commands())]
    expected = []
    for arguments in asked:
        with contextlib.suppress(SystemExit):
            main(arguments)
        expected.append(capsys.readouterr().out)
    code = (
        "import contextlib, io, json, sys, amanda_command\n"
        "printed = []\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    sys.argv, out = ['amanda', *arguments], io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):\n"
        "        amanda_command.main()\n"
        "    printed.append(out.getvalue())\n"
        "print(json.dumps([printed, 'torch._C' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(asked)], capture_output=True, text=True, check=True)
    printed, with_torch = json.loads(done.stdout)
    assert printed == expected
    assert not with_torch


@pytest.mark.parametrize("arguments", [["run", "train.py", "--help"], ["profile", "-m", "train", "-h"], ["doctor"]])
def test_other_command_lines_have_their_framework(arguments):
    assert not amanda_command._only_prints(arguments)
