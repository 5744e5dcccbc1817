"""Adds the documentation to a site with that of other versions: `python scripts/docs_site.py HTML SITE`.

HTML is what Sphinx wrote. It becomes the folder of SITE that has the version as its name. SITE/versions.js lists these
folders for the menu of each page, and SITE/index.html leads to the newest one.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

LEADS = '<!doctype html><meta http-equiv="refresh" content="0; url={0}/index.html"><a href="{0}/index.html">{0}</a>\n'


def version_of(html: Path) -> str:
    """The version in Sphinx's inventory of names.

    Raises:
        SystemExit: `html` is not what Sphinx wrote.
    """
    inventory = html / "objects.inv"
    if not inventory.is_file():
        sys.exit(f"[docs] {html} has no objects.inv: run make docs first")
    return inventory.read_bytes().split(b"# Version: ", 1)[1].split(b"\n", 1)[0].decode()


def order(name: str) -> tuple[bool, Version | str]:
    """Versions by number; other names, such as "main", come before them."""
    try:
        return True, Version(name)
    except InvalidVersion:
        return False, name


def add(html: Path, site: Path) -> Path:
    """Returns the folder of this version, whose earlier contents are replaced."""
    version = version_of(html)
    folder = site / version
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(html, folder)
    versions = sorted((path.parent.name for path in site.glob("*/objects.inv")), key=order, reverse=True)
    (site / "versions.js").write_text(f"window.amandaVersions = {json.dumps(versions)};\n")
    (site / "index.html").write_text(LEADS.format(versions[0]))
    return folder


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("html", type=Path, metavar="HTML")
    arguments.add_argument("site", type=Path, metavar="SITE")
    given = arguments.parse_args()
    print(f"[docs] {add(given.html, given.site)}/index.html")


if __name__ == "__main__":
    main()
