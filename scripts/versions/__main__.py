"""Tries Amanda on pairs of Python and PyTorch: `python scripts/versions 3.12:2.11.0`; without arguments, all pairs.

Each pair gets an environment, a build and a package of its own below build/versions, about 2 GB; 4 GB of CUDA's libraries
are shared. It is built, imported, and tested with ctest and parts of the Python tests. The result is in
`result.json` in its folder, and in a row of the table in docs/installation.md. With `--slice`, fewer tests run,
and the table stays as it is. The exit status is 1 if something failed. A pair that cannot be installed here is not tried:
this is no failure, and the last line says so.
"""

import command

command.main()
