"""Replay: what a call of the model got, so that it can be made again."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amanda.toolkit import arrays_of


class Replay(NamedTuple):
    """The arguments of a call of the model, and the modes of autograd in it."""

    arguments: Sequence[Any]  # with copies of tensors: the model may write to those that it got
    keywords: Mapping[str, Any]
    refused: str  # the reason why the call can't be made again; "" if it can
    records: bool  # whether autograd did
    inference: bool  # whether it was inside torch.inference_mode()

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> Replay:
        """The replay of a call that begins, without keywords."""
        import torch

        empty = cls((), {}, "", torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        return empty._with(arguments=arguments)

    def with_keywords(self, keywords: Mapping[str, Any]) -> Replay:
        return self._with(keywords=dict(keywords))

    def _with(self, **given: Any) -> Replay:
        try:
            return self._replace(**copied(given))
        except ValueError as error:
            return self._replace(refused=str(error))


def copied(value: Any) -> Any:
    """With copies of the tensors in it. Raises `ValueError`: something else has tensors, and can't be copied."""
    if arrays_of(value) is not None:
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if next(tensors_in(value), None) is None:
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:  # of whatever class the program has
        raise ValueError(f"an argument, a {type(value).__name__}, can't be copied") from error


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in lists, dictionaries, dataclasses, and in caches of transformers, in order."""
    if arrays_of(value) is not None:
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from tensors_in(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from tensors_in(member)
    elif isinstance(getattr(value, "layers", None), list):
        for layer in value.layers:
            yield from tensors_in([getattr(layer, "keys", None), getattr(layer, "values", None)])
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))
