"""The help of every command has an example, and the example is right."""

import argparse
import shlex

import pytest
from amanda.cli.main import COMMANDS, main, parser


def commands():
    (action,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return action.choices


def test_there_is_one_command_for_each_module():
    assert len(commands()) == len(COMMANDS)


@pytest.mark.parametrize("name", commands())
def test_the_example_of_the_help_is_understood(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    program, command, *arguments = shlex.split(text.partition(" example: ")[2])
    assert (program, command) == ("amanda", name)
    given = parser().parse_args([command, *arguments])
    if name == "report":
        return  # it runs no program
    assert given.program, "the example ends with a script"
    assert not any(argument.startswith("-") for argument in given.program), "all options are the command's"
