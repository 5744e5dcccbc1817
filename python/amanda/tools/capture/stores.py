"""The stores of captured results: in memory, or in a folder of safetensors files."""

from __future__ import annotations

import collections
import itertools
import os
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, cast

import numpy as np

from amanda.toolkit import locks

from .attention_weights import computed

Kind = Literal["result", "grad"]
KINDS: tuple[Kind, ...] = ("result", "grad")
Tensors: TypeAlias = tuple[Any, ...]  # of PyTorch, or arrays of numpy
Entries: TypeAlias = dict[int, Any]  # by run


class Store(Protocol):
    """Keeps tensors by kind, name of the result, and run."""

    def put(self, kind: Kind, name: str, run: int, tensors: Tensors, is_list: bool) -> None: ...
    def drop(self, name: str, run: int) -> None: ...
    def get(self, kind: Kind, name: str, run: int) -> tuple[Tensors, bool]: ...
    def runs(self, kind: Kind, name: str) -> list[int]: ...
    def where(self, kind: Kind, name: str, run: int) -> str: ...
    def names(self) -> list[str]: ...
    def clear(self) -> None: ...


class _Index:
    """The common part of both stores: the table of entries. Subclasses define what an entry is."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Kind, str], Entries] = collections.defaultdict(dict)
        self._lock = locks.lock()  # guards the field above

    def drop(self, name: str, run: int) -> None:
        with self._lock:
            found = [self._entries[kind, name].pop(run, None) for kind in KINDS]
        for entry in found:
            self._forget(entry)

    def runs(self, kind: Kind, name: str) -> list[int]:
        with self._lock:
            return sorted(self._entries.get((kind, name), ()))

    def names(self) -> list[str]:
        with self._lock:
            return [name for (kind, name), entries in self._entries.items() if kind == "result" and entries]

    def clear(self) -> None:
        with self._lock:
            found = [entry for entries in self._entries.values() for entry in entries.values()]
            self._entries.clear()
        for entry in found:
            self._forget(entry)

    def _forget(self, entry: Any) -> None: ...

    def _add(self, kind: Kind, name: str, run: int, entry: Any) -> None:
        with self._lock:
            before = self._entries[kind, name].pop(run, None)
            self._entries[kind, name][run] = entry
        self._forget(before)

    def _entry(self, kind: Kind, name: str, run: int) -> Any:
        with self._lock:
            return self._entries[kind, name][run]


class MemoryStore(_Index):
    def put(self, kind: Kind, name: str, run: int, tensors: Tensors, is_list: bool) -> None:
        self._add(kind, name, run, (tensors, is_list))

    def get(self, kind: Kind, name: str, run: int) -> tuple[Tensors, bool]:
        tensors, is_list = self._entry(kind, name, run)
        return tuple(map(computed, tensors)), is_list

    def where(self, kind: Kind, name: str, run: int) -> str:
        tensors, _ = self._entry(kind, name, run)
        return str(getattr(tensors[0], "device", "cpu"))


class FolderStore(_Index):
    """One file for each result and gradient of a run. A file is complete, or it is not there.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: the folder of a new store is not empty.
    """

    def __init__(self, folder: str | os.PathLike[str], new: bool) -> None:
        super().__init__()
        try:
            import safetensors

            from amanda.toolkit import tensor_file
        except ImportError:
            raise ImportError(
                "[capture] a folder of results needs safetensors: pip install 'amanda-nn[files]'"
            ) from None
        self._safetensors, self._write = safetensors, tensor_file.write
        self._folder, self._numbers = Path(folder), itertools.count()
        if not new:
            self._read()
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise ValueError(f"[capture] the folder {str(self._folder)!r} is not empty; choose a new one, or empty it")

    def put(self, kind: Kind, name: str, run: int, tensors: Tensors, is_list: bool) -> None:
        path = self._folder / f"{next(self._numbers):08}.safetensors"
        values = {str(i): computed(tensor) for i, tensor in enumerate(tensors)}
        framework = "np" if isinstance(tensors[0], np.ndarray) else "pt"
        metadata = {"kind": kind, "name": name, "run": str(run), "is_list": str(int(is_list)), "framework": framework}
        self._write("capture", path, values, metadata)
        self._add(kind, name, run, path)

    def get(self, kind: Kind, name: str, run: int) -> tuple[Tensors, bool]:
        path = self._entry(kind, name, run)
        metadata = self._metadata(path)
        with self._safetensors.safe_open(path, framework=metadata.get("framework", "pt")) as file:
            return tuple(file.get_tensor(key) for key in sorted(file.keys(), key=int)), metadata["is_list"] == "1"

    def _metadata(self, path: Path) -> dict[str, str]:
        with self._safetensors.safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})

    def where(self, kind: Kind, name: str, run: int) -> str:
        return str(self._entry(kind, name, run))

    def _forget(self, entry: Any) -> None:
        if entry is not None:
            entry.unlink(missing_ok=True)

    def _read(self) -> None:
        paths = sorted(self._folder.glob("*.safetensors"))
        if not paths:
            raise FileNotFoundError(f"[capture] {str(self._folder)!r} has no captured results")
        for path in paths:
            metadata = self._metadata(path)
            if not {"kind", "name", "run", "is_list"} <= metadata.keys():
                raise ValueError(f"[capture] {str(path)!r} was not written by Capture")
            self._entries[cast(Kind, metadata["kind"]), metadata["name"]][int(metadata["run"])] = path
