"""Puts the builds of several wheels into one: `python scripts/merge_wheels.py FOLDER WHEEL...`.

Each wheel comes from scripts/wheel.sh, in an environment with another minor version of torch. All must be of the same
sources, for the same Python, by the same compiler: files that do not link LibTorch are taken from one of them. The
extra `torch` of the wheel that is written requires a version that it has a build for. From the same wheels, it writes
the same bytes: the times of files are SOURCE_DATE_EPOCH, or the beginning of 1980.
"""

import argparse
import os
import re
import sys
from pathlib import Path
from zipfile import ZipFile

from auditwheel.wheeltools import InWheel
from packaging.utils import parse_wheel_filename

# The files of a wheel for one minor version of torch.
OF_BUILD = re.compile(r"amanda/(?:_torch_(\d+)_(\d+)/|lib/cmake/amanda/amanda-torch-(\d+)\.(\d+)-targets)")
# The files that differ between two compilations of the same sources, and those that list the files.
DIFFERING = re.compile(r".*\.(?:so|a)|[^/]*\.dist-info/(?:METADATA|RECORD|WHEEL)")
TORCH_EXTRA = re.compile(r'^Requires-Dist: torch\b.*extra == "torch"$', re.MULTILINE)


class Wheel:
    """A wheel, and its files for each minor version of torch."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        name, version, _, tags = parse_wheel_filename(path.name)
        self.made_for = {f"{name} {version} for {tag.interpreter}, {tag.abi}" for tag in tags}
        found = [re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", tag.platform) for tag in tags]
        #: (major, minor) of the oldest glibc that it runs on
        self.floor = max(((int(match[1]), int(match[2])) for match in found if match), default=None)
        with ZipFile(path) as archive:
            self.checksums = {info.filename: info.CRC for info in archive.infolist() if not info.is_dir()}
        self.of_builds = {name: minor for name in self.checksums if (minor := minor_of(name))}

    @property
    def minors(self) -> list[tuple[int, int]]:
        return sorted(set(self.of_builds.values()))

    def shared(self) -> dict[str, int | None]:
        """The checksum of each file that all builds have in common; None where two compilations may differ."""
        names = self.checksums.keys() - self.of_builds.keys()
        return {name: None if DIFFERING.fullmatch(name) else self.checksums[name] for name in names}


def minor_of(name: str) -> tuple[int, int] | None:
    """The minor version of torch that a file of a wheel is for, or None if it is for all."""
    found = OF_BUILD.match(name)
    return (int(found[1] or found[3]), int(found[2] or found[4])) if found else None


def check(wheels: list[Wheel]) -> None:
    """Raises ValueError if these wheels make no one wheel."""
    first = wheels[0]
    seen: dict[tuple[int, int], Wheel] = {}
    for wheel in wheels:
        if wheel.floor is None:
            raise ValueError(f"{wheel.path.name} has no manylinux tag; build it with scripts/wheel.sh")
        if not wheel.minors and len(wheels) > 1:
            raise ValueError(f"{wheel.path.name} has no build for any version of torch; leave it out")
        if wheel.made_for != first.made_for:
            raise ValueError(f"{names(first, wheel)} are {sentence(first.made_for)} and {sentence(wheel.made_for)}")
        for minor in wheel.minors:
            other = seen.setdefault(minor, wheel)
            if other is not wheel:
                raise ValueError(
                    f"{names(other, wheel)} both have a build for torch {minor[0]}.{minor[1]}; leave one out"
                )
        different = sorted(dict(first.shared().items() ^ wheel.shared().items()))
        if different:
            more = f" and {len(different) - 1} more files" if different[1:] else ""
            raise ValueError(
                f"{names(first, wheel)} differ in {different[0]}{more}; build both from the same sources and by the same "
                "compiler"
            )


def names(one: Wheel, other: Wheel) -> str:
    return f"{one.path} and {other.path}"


def sentence(made_for: set[str]) -> str:
    return " or ".join(sorted(made_for))


def requirement(minors: list[tuple[int, int]]) -> str:
    """The requirement of the extra `torch`: one of these minor versions."""
    (major, first), (_, last) = minors[0], minors[-1]
    between = [f"!={major}.{minor}.*" for minor in range(first, last) if (major, minor) not in minors]
    return f"torch{','.join([f'>={major}.{first}', *between, f'<{major}.{last + 1}'])}"


def merge(folder: Path, wheels: list[Wheel]) -> Path:
    """Writes the wheel into `folder`, with the tag of the oldest glibc that all its libraries run on."""
    check(wheels)
    base = max(wheels, key=lambda wheel: wheel.floor or (0, 0))
    merged = folder / base.path.name
    if any(merged.resolve() == wheel.path.resolve() for wheel in wheels):
        raise ValueError(f"{merged} would be overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")
    with InWheel(base.path, merged) as unpacked:  # writes RECORD, too
        for wheel in wheels:
            with ZipFile(wheel.path) as archive:
                archive.extractall(unpacked, wheel.of_builds)
        minors = sorted(minor for wheel in wheels for minor in wheel.minors)
        (metadata,) = unpacked.glob("*.dist-info/METADATA")
        if minors:
            required = f'Requires-Dist: {requirement(minors)}; extra == "torch"'
            metadata.write_text(TORCH_EXTRA.sub(required, metadata.read_text()))
        for path in unpacked.rglob("*"):  # the modes that a umask gave them
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    return merged


def main() -> None:
    parser = argparse.ArgumentParser(description="Puts the builds of several wheels into one.")
    parser.add_argument("folder", type=Path, help="where the wheel is written")
    parser.add_argument("wheels", type=lambda path: Wheel(Path(path)), nargs="+", help="wheels by scripts/wheel.sh")
    given = parser.parse_args()
    try:
        print(f"[wheel] {merge(given.folder.absolute(), given.wheels)}")
    except ValueError as error:
        sys.exit(f"[merge] {error}")


if __name__ == "__main__":
    main()
