"""The rules that write the vocabulary's words, and what belongs to them, into contexts."""

from __future__ import annotations

import functools
from typing import Any

from amanda import OpContext
from amanda.toolkit.operators import Vocabulary, vocabularies, vocabulary_of

from .mapping_tool import MappingTool, Rule


def standard_rules() -> list[tuple[str, Rule]]:
    """Rules for `MappingTool`, one for each driver: they write the keys that `vocabulary` describes."""
    return [(known.namespace, functools.partial(_write, known)) for _, known in vocabularies()]


def _write(known: Vocabulary, context: OpContext) -> None:
    if "op_type" not in context:
        context.update(known.keys(context))
    if context.is_backward() and "op_type" in context:
        context["grad_roles"] = known.grad_roles(context)


def keys_of(context: OpContext) -> dict[str, Any]:
    """The keys that `vocabulary` would write into the context of this forward operator."""
    known = vocabulary_of(context.namespace)
    return {} if known is None else known.keys(context)


def vocabulary() -> MappingTool:
    """A mapping tool with `standard_rules`. A tool that depends on it is the same for every framework::

        class WeightNorms(amanda.Tool):
            def __init__(self):
                super().__init__()
                self.depends_on(vocabulary())
                self.add_inst_for_op(self.analyze, ops=names_of("conv2d", "matmul", "linear"))

            def analyze(self, context):
                if "weight" in context["roles"]:
                    context.insert_before_op(self.look, inputs=[context["roles"]["weight"]])

    Contexts of operators for which there is a word get these keys; other operators get none of them:

    - ``context["op_type"]``: the word, such as "conv2d". In a backward context, of the forward operator. Where several
      words stand for an operator, as for ONNX's Conv, it is the one that fits its operands.
    - ``context["roles"]``: positions of inputs by role, such as ``{"input": 0, "weight": 1}``. An input that was not
      given, such as the bias, has no role. The factors of a product are "left" and "right"; if one of them is a
      parameter, it is also "weight", and the other one "input".
    - ``context["layout"]``: the dimensions of input and output, such as "NHWC", of operators with channels.
    - ``context["weight_layout"]``: the dimensions of the weight, such as "HWIO": O and I are the channels of output and
      input; the operator sums over I. M is the multiplier of a depthwise convolution.
    - ``context["grad_roles"]``, in backward contexts: positions of `grad_inputs` by role. ``{"weight": 1}``: this
      backward operator computes the weight's gradient, and returns it as ``grad_inputs[1]``. Empty if it computes none.

    Layouts are given where the number of dimensions is known.
    """
    return MappingTool(standard_rules())
