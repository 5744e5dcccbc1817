"""costly-copy."""

from __future__ import annotations

from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place
from amanda.toolkit.frames import line_of_code

from ..gradients import storage
from ..memory import Memory
from ..rule import Rule

_COPIES = ("to", "type_as", "_to_copy", "contiguous", "clone", "repeat", "expand_copy")
LEAST = 1 << 18  # bytes
MOST_WORK = 32  # operations of a product for each byte that it moves: with less, it takes as long as its bytes


class CostlyCopy(Rule):
    """A matrix product gets a copy that was made for it, and the copy moves more bytes than the product: it is read and
    written, and the product reads it once. An example is a weight that is cast each time it multiplies a few rows.

    It looks at copies of 256 KiB or more, and at products of so few rows that memory limits them.
    """

    name = "costly-copy"
    sentence = "a copy costs more than the product that it is made for"
    fix = "copy once, where the tensor is made: store the weight in the type and layout in which it multiplies"
    is_advice = True
    ops = (*_COPIES, *ops.linear, *ops.matmul)
    with_outputs = True
    bad = """
        weight = torch.randn(512, 256)
        for _ in range(3):
            F.linear(torch.randn(2, 256).bfloat16(), weight.to(torch.bfloat16))
    """
    good = """
        weight = torch.randn(512, 256).to(torch.bfloat16)
        for _ in range(3):
            F.linear(torch.randn(2, 256).bfloat16(), weight)
        F.linear(torch.randn(512, 256).bfloat16(), torch.randn(512, 256).to(torch.bfloat16))
    """

    def begin(self) -> None:
        self._runs: dict[Place, int] = {}  # of copies, and of products that get one
        self._costly: dict[Place, tuple[Place, str]] = {}  # products: the copy
        self._copies: dict[int, tuple[Any, int, Place]] = {}  # by the result's storage

    def look(self, context: OpContext) -> None:
        result = context.outputs[0]
        given = [one for one in context.inputs if getattr(one, "layout", None) is not None and one.ndim > 0]
        if context.op.__name__ in _COPIES:
            copied = context.inputs[0]
            memory = storage(result)
            place = Place.of(context)
            if memory is not None and _bytes(result) >= LEAST and memory != storage(copied):
                self._copies[memory] = Memory(result), _bytes(copied) + _bytes(result), place
                context.insert_after_op(self._on_run, outputs=[], place=place)
            return
        moved = sum(map(_bytes, (*given, result)))
        if len(given) < 2 or 2 * result.numel() * given[0].shape[-1] > MOST_WORK * moved:
            return
        for one in given:
            known = self._copies.get(storage(one) or 0)
            if known is not None and known[0].is_of(one) and known[1] > moved:
                product = Place.of(context)
                self._costly[product] = known[2], f"moves {_size(known[1])}, and the product {_size(moved)}"
                context.insert_after_op(self._on_run, outputs=[], place=product)

    def _on_run(self, place: Place) -> None:
        self._runs[place] = self._runs.get(place, 0) + 1

    def at_end(self, ended_well: bool) -> None:
        for product, (copy, text) in self._costly.items():
            if 1 < self._runs.get(product, 0) <= self._runs.get(copy, 0):
                where = f" ({line_of_code(copy.source)})" if copy.source else ""
                self.found(product, f"{copy.name}{where} {text}", count=self._runs[product])
        self.begin()


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
