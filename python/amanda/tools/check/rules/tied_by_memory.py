"""tied-by-memory."""

from __future__ import annotations

from typing import Any

from ..rule import Rule, Step


class TiedByMemory(Rule):
    """Two parameters of an optimizer have the same memory, as after ``head.weight.data = embedding.weight.data``. They are
    not tied: each has a gradient of its own, and one step updates the memory twice, with two states.

    It looks at the first step of an optimizer.
    """

    name = "tied-by-memory"
    sentence = "two parameters have one memory, and are updated one after the other"
    fix = "tie the parameters themselves: head.weight = embedding.weight"
    only_first_steps = True
    bad = """
        embedding, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        head.weight.data = embedding.weight.data
        optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], 0.1)
        F.cross_entropy(head(embedding(labels)), labels).backward()
        optimizer.step()
    """
    good = """
        embedding, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        head.weight = embedding.weight
        optimizer = torch.optim.SGD([*embedding.parameters()], 0.1)
        F.cross_entropy(head(embedding(labels)), labels).backward()
        optimizer.step()
        flat = torch.zeros(16)  # parameters that are parts of one tensor
        parts = [nn.Parameter(flat[:8]), nn.Parameter(flat[8:])]
        optimizer = torch.optim.SGD(parts, 0.1)
        sum(parts).sum().backward()
        optimizer.step()
    """

    def before_step(self, step: Step) -> None:
        known: dict[tuple[Any, ...], Any] = {}
        for one in step.parameters:
            place = self.read(one, _place)
            if place is None:
                continue
            other = known.setdefault(place, one)
            if other is not one:
                self.found(step.place, _text(other, one), key=str(place))


def _place(tensor: Any) -> tuple[Any, ...] | None:
    """Where a parameter with elements begins, and how far it goes."""
    return (tensor.device, tensor.data_ptr(), tensor.numel()) if tensor.numel() and tensor.data_ptr() else None


def _text(one: Any, other: Any) -> str:
    from amanda.toolkit.torch import parameter_name

    names = [parameter_name(each) or f"a parameter of shape {tuple(each.shape)}" for each in (one, other)]
    return f"{names[0]} and {names[1]}"
