"""A tool that looks at everything, and changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import amanda
import numpy as np


class Look(amanda.Tool):
    """Looks at every operator, forward and backward, on all sides; reads every value that it is shown.

    `count` has the runs of forward operators by name, `backward` those of backward operators. With `hand_back`, its
    routines return what they were given.
    """

    def __init__(self, ops: Any = None, *, hand_back: bool = False) -> None:
        super().__init__()
        self.hand_back = hand_back
        self.clear()
        for backward in (False, True):
            self.add_inst_for_op(self.analyze, ops=ops, backward=backward)
            self.add_inst_for_op(self.analyze_outputs, ops=ops, backward=backward, require_outputs=True)

    def clear(self) -> None:
        self.count: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()
        self.namespaces: Counter[str] = Counter()

    def analyze(self, context: amanda.OpContext) -> None:
        _ = (context.inputs, context.module_path, context.source, context.op_id)
        self.namespaces[context.namespace] += 1
        before, after = (self.count_and_give, self.give) if self.hand_back else (self.count_and_look, self.look)
        if context.is_backward():
            counts, name = self.backward, context.backward_op.__name__
            context.insert_before_backward_op(before, counts=counts, name=name)
            context.insert_after_backward_op(after)
        else:
            context.insert_before_op(before, counts=self.count, name=context.op.__name__)
            context.insert_after_op(after)

    def analyze_outputs(self, context: amanda.OpContext) -> None:
        _ = context.grad_inputs if context.is_backward() else context.outputs

    def look(self, *operands: Any) -> None:
        for operand in operands:
            for value in operand if isinstance(operand, list) else [operand]:
                _ = None if value is None else np.array(value)  # reads all of it

    def give(self, *operands: Any) -> Any:
        self.look(*operands)
        return operands

    def count_and_look(self, *operands: Any, counts: Counter[str], name: str) -> None:
        counts[name] += 1
        self.look(*operands)

    def count_and_give(self, *operands: Any, counts: Counter[str], name: str) -> Any:
        self.count_and_look(*operands, counts=counts, name=name)
        return operands
