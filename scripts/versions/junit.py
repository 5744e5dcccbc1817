"""How tests ended, from the JUnit files of ctest and pytest."""

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path


@dataclasses.dataclass
class Suite:
    """How many tests of a suite ended how."""

    passed: int = 0
    skipped: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)  # their names
    error: str = ""  # why it did not run to its end


def read(file: Path, paths: tuple[str, ...] = ()) -> Suite:
    """The suite of a file's tests; with `paths`, of those tests of pytest that are in these files and folders."""
    if not file.exists():
        return Suite(error="its runner failed")
    suite = Suite()
    for case in ElementTree.parse(file).iter("testcase"):
        if not paths or _place(case).startswith(tuple(f"{path.removesuffix('.py')}/" for path in paths)):
            _count(case, suite)
    return suite


def _place(case: ElementTree.Element) -> str:
    """ "tests/python/core/test_run/"; pytest has no class for a file that it could not collect."""
    return f"{(case.get('classname') or case.get('name', '')).replace('.', '/')}/"


def _count(case: ElementTree.Element, suite: Suite) -> None:
    if case.find("failure") is not None or case.find("error") is not None:
        suite.failed.append(f"{re.sub(r'^tests[.]python[.]', '', case.get('classname', ''))}::{case.get('name')}")
    elif case.find("skipped") is not None:
        suite.skipped += 1
    else:
        suite.passed += 1
