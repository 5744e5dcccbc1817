"""ExportedProgram: a `.pt2` file of torch.export as the program of a command, which calls the model in the file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from amanda.cli.model_arguments import ModelArguments, listed, named

SUFFIX = ".pt2"


class ExportedProgram:
    """Calls of a model that `torch.export.save` has written, without gradients.

    Arguments:
        argv: the file, and what follows it in the command line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, or an argument is wrong.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        path = argv[0]
        given = ModelArguments(argv)
        exported = loaded(path)
        self._runs = given.runs
        self._args, self._kwargs = _inputs(exported, given.arrays, path)
        self._model = exported.module()

    def run(self) -> None:
        """Calls the model."""
        import torch

        with torch.no_grad():
            for _ in range(self._runs):
                self._model(*self._args, **self._kwargs)


def loaded(path: str) -> Any:
    """The exported program in a file. Raises as `ExportedProgram`."""
    _check(path)
    import torch  # here: other programs need not have it

    try:
        return torch.export.load(path)
    except Exception as error:  # PyTorch's own: of another version, damaged, with operators that are not registered
        raise ValueError(f"torch.export.load can't load {path!r}: {type(error).__name__}: {error}") from error


def _check(path: str) -> None:
    with open(path, "rb") as file:  # the error says why it cannot be read
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path!r} is no file of torch.export.save: it is no zip file")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any("/aotinductor/" in name for name in names):
        raise ValueError(
            f"{path!r} is a package of AOTInductor: compiled code, in which there are no operators to look at; "
            "give this the file that torch.export.save writes of the same model"
        )


def _inputs(exported: Any, arrays: Mapping[str, Any] | None, path: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The model's arguments and keyword arguments: the example's, which the file has, with arrays in their places."""
    from torch.export.graph_signature import InputKind

    from amanda.toolkit.torch import tree_leaves, tree_unflatten

    specs = exported.graph_signature.input_specs
    names = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    example = exported.example_inputs
    if arrays is None:
        if example is None:
            raise ValueError(f"{path!r} has no example inputs: give it --inputs FILE.npz with {listed(names)}")
        return example  # type: ignore[no-any-return]
    leaves = _placed(arrays, names, [None] * len(names) if example is None else tree_leaves(example))
    args, kwargs = tree_unflatten(leaves, exported.call_spec.in_spec)
    return args, kwargs


def _placed(arrays: Mapping[str, Any], names: Sequence[str], examples: Sequence[Any]) -> list[Any]:
    """The arrays, and where there is none, the example. Both are given by the inputs' names, or all arrays by
    position."""
    import torch

    arrays = named(arrays, names)
    leaves = list(examples)
    for i, name in enumerate(names):
        if name not in arrays:
            if leaves[i] is None:
                raise ValueError(f"argument --inputs: there is no array {name!r}; the model takes {listed(names)}")
            continue
        tensor = torch.from_numpy(arrays[name])
        if not isinstance(leaves[i], torch.Tensor | None):
            raise ValueError(
                f"argument --inputs: {name!r} is no tensor: the model was exported for the value {leaves[i]!r}"
            )
        if leaves[i] is not None and leaves[i].dtype != tensor.dtype:
            raise ValueError(
                f"argument --inputs: {name!r} is {_dtype(tensor)}, and the model was exported for {_dtype(leaves[i])}"
            )
        leaves[i] = tensor
    return leaves


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
