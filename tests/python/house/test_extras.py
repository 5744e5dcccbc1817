"""Optional libraries: without one, a message names the extra that installs it, and pyproject.toml has that extra."""

import json
import re
import subprocess
import sys
import tomllib

import pytest
import without_extras
from packaging.requirements import Requirement
from repository import ROOT

EXTRAS = {
    name: {Requirement(each).name for each in requirements}
    for name, requirements in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ].items()
}
PAGE = ROOT / "docs" / "installation.md"
NAMED = re.compile(r"(?:amanda-nn|'\.)\[([a-z, -]+)\]")
OTHER_PROJECT = re.compile(r"pip install (?:-\S+ )*['\"]?amanda(?![-_]nn)\b(?!-[\d.]+)|\bamanda\[[a-z]")
MESSAGE = re.compile(
    r"(?:needs? (?P<needed>[\w, ]+?)|(?P<absent>\w+) is not installed): pip install 'amanda-nn\[(?P<extra>\w+)\]'"
)


def texts():
    """The files in which users read names of extras."""
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "python/**/*.py",
        "src/**/*",
        "drivers/**/*",
        "tools/**/*",
        "research/**/*",
        "cmake/*",
    ):
        yield from (path for path in ROOT.glob(pattern) if path.is_file() and "__pycache__" not in path.parts)


def test_every_extra_that_is_named_exists():
    found = {
        (name.strip(), path.name)
        for path in texts()
        for names in NAMED.findall(path.read_text())
        for name in names.split(",")
    }
    assert {name for name, _ in found} >= {"all", "files", "plot"}
    assert [(name, file) for name, file in sorted(found) if name not in EXTRAS] == []


def test_no_text_installs_the_other_project_of_this_name():
    found = [(path.name, match[0]) for path in texts() for match in OTHER_PROJECT.finditer(path.read_text())]
    assert found == []
    for wrong in ("pip install amanda", "pip install 'amanda[files]'", "pip install -U amanda==0.1"):
        assert OTHER_PROJECT.search(wrong), wrong
    for right in ("pip install amanda-nn", "pip install 'amanda-nn[all]'", "pip install dist/amanda_nn-*.whl"):
        assert not OTHER_PROJECT.search(right), right


def test_the_page_on_installation_lists_all_extras():
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    assert {name: set(re.findall(r"[\w-]+", packages)) for name, packages in rows} == EXTRAS | {
        "all": {"files", "onnx", "plot"}
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What happened in a process without optional libraries."""
    program = [sys.executable, without_extras.__file__, tmp_path_factory.mktemp("bare")]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_sufficient(text, packages=()):
    """What it says to install is what it says is missing."""
    message = MESSAGE.search(text)
    assert message, text
    missing = set(re.split(r", | and ", message["needed"] or message["absent"]))
    assert missing <= EXTRAS[message["extra"]], text
    assert {*packages} <= EXTRAS[message["extra"]], text


@pytest.mark.parametrize("use", without_extras.USES)
def test_what_needs_a_library_names_the_extra(found, use):
    assert found[use] is not None
    assert_sufficient(found[use], [site.partition(", ")[2] for site in without_extras.USES[use].imports])


@pytest.mark.parametrize("command", without_extras.COMMANDS)
def test_a_command_ends_before_the_program_runs(found, command):
    ended = found[command]
    assert (ended["status"], ended["ran"]) == (2, False), ended
    assert_sufficient(ended["printed"])


@pytest.mark.parametrize("command", without_extras.BARE_COMMANDS)
def test_other_commands_need_no_library(found, command):
    ended = found[command]
    assert (ended["status"] or 0, ended["ran"]) == (0, True), ended
    assert "Traceback" not in ended["printed"]
