"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[str]:
    """The path of an empty file, which becomes `path` at the end of the block; until then, what was there stays.

    If the block raises, nothing has changed. A symbolic link stays one. A path that is no file, such as /dev/stdout, is
    written to directly.

    Raises:
        OSError: it cannot be written.
    """
    path = os.fspath(path)
    if path.startswith("/dev/") or (os.path.exists(path) and not os.path.isfile(path)):
        yield path
        return
    path = os.path.realpath(path)
    try:
        descriptor, unfinished = tempfile.mkstemp(dir=os.path.dirname(path), suffix=os.path.splitext(path)[1])
    except OSError as error:  # which names the unfinished file
        raise OSError(error.errno, error.strerror, path) from None
    os.close(descriptor)
    try:
        yield unfinished
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(unfinished, 0o666 & ~mask)  # as open() would have made it
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise
