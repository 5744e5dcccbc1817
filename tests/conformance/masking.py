"""A tool that the tests share."""

from __future__ import annotations

import amanda
from description import MASK


class Masks(amanda.Tool):
    """Masks the weight of the first product, and its gradient."""

    def __init__(self, driver):
        super().__init__()
        self.driver = driver
        self.analysed = []  # the operators, once for each analysis
        self.add_inst_for_op(self.analyse, ops=driver.ops["mul"])
        self.add_inst_for_op(self.analyse_backward, ops=driver.ops["mul"], backward=True)

    def analyse(self, context):
        self.analysed.append(context.op_id)
        if context.module_path == "first":
            context["masked"] = True
            context.insert_before_op(self.mask, inputs=[1])

    def analyse_backward(self, context):
        if context.get("masked") and context.backward_op.__name__ in self.driver.backward_ops["mul"]:
            self.analysed.append(context.backward_op_id)
            context.insert_after_backward_op(self.mask, grad_inputs=[1])

    @property
    def analyses(self):
        return len(self.analysed)

    def mask(self, value):
        return self.driver.times(value, MASK)
