"""Makes the wheels of a release: `python scripts/wheels`; for some pairs: `python scripts/wheels 3.12:2.11.0 3.12:2.12.1`.

There is a wheel for each Python, with a build for each of its versions of torch, in dist/. The code that runs at each
operator is compiled with a profile, which is recorded here and saved in dist/profiles. `--profiles FOLDER` takes
saved ones, from which the same files are built. Each wheel is installed into a fresh environment, and tried there
with each of its versions of torch. Environments are those of `make versions`.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from itertools import groupby
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "versions"))
import installed
from environment import FOLDER, ROOT, Environment, NotInstalledError
from pairs import PAIRS, Pair
from release import Build, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="wheels", description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="*", type=Pair.parse, default=PAIRS, metavar="PYTHON:TORCH")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "dist", help="where the wheels are written (default: dist)"
    )
    parser.add_argument("--profiles", type=Path, help="a folder of profiles that were saved (default: record them)")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    # All wheels have the time of the commit.
    os.environ.setdefault("SOURCE_DATE_EPOCH", run(["git", "log", "-1", "--format=%ct"]).strip())
    environments = [environment for pair in sorted(given.pairs) if (environment := made(pair))]
    if not environments:
        sys.exit("[wheels] none of these pairs can be installed here")
    for _, of_python in groupby(environments, lambda environment: environment.pair.python):
        make([*of_python], given.folder.absolute(), given.profiles and given.profiles.absolute())


def made(pair: Pair) -> Environment | None:
    """The environment of a pair, if it can be had here."""
    environment = Environment(pair)
    try:
        environment.make()
    except NotInstalledError as error:
        print(f"[wheels] {pair} is left out: {error}", flush=True)
        return None
    return environment


def make(environments: list[Environment], folder: Path, profiles: Path | None) -> None:
    """The wheel for a Python, built in these environments, and tried."""
    with tempfile.TemporaryDirectory() as built:
        wheels = [one(environment, Path(built), folder, profiles) for environment in environments]
        merged = run([environments[0].python, ROOT / "scripts" / "merge_wheels.py", folder, *wheels])
    wheel = Path(merged.split("[wheel] ")[1].strip())
    print(f"[wheels] {wheel}", flush=True)
    check_tag(wheel, environments[0].python)
    for environment in environments:
        print(f"[wheels] {environment.pair}: {installed.tried(wheel, environment)}", flush=True)
    print(run([environments[0].python, ROOT / "scripts" / "footprint.py", wheel, "--rounds", "5"]), flush=True)


def one(environment: Environment, built: Path, folder: Path, profiles: Path | None) -> Path:
    """The wheel for a pair. Its profile is taken from `profiles`, or recorded; it is in `folder`, too."""
    name = f"{environment.pair.python}-{environment.pair.torch}"
    print(f"[wheels] building for {environment.pair}", flush=True)
    build, archive = Build(environment.python, name), f"{name}.tar.gz"
    if profiles:
        build.unpack(profiles / archive)
    else:
        build.record()
    build.pack(folder / "profiles" / archive)
    return build.use(built / name)


def check_tag(wheel: Path, python: Path) -> None:
    """Exits unless the wheel's name has the tag of the oldest manylinux that auditwheel finds for it."""
    found = json.loads(run([python, "-m", "auditwheel", "show", "--json", wheel]))["sym_tag"]
    if not re.search(rf"-{re.escape(found)}\.whl$", wheel.name):
        sys.exit(f"[wheels] {wheel.name} runs on {found}, and its name says another tag")


if __name__ == "__main__":
    main()
