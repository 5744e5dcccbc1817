"""The rules that write the vocabulary's words, and what belongs to them, into contexts."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from amanda import OpContext

from . import pytorch, tensorflow
from .mapping_tool import MappingTool, Rule

_FRAMEWORKS: dict[str, ModuleType] = {"pytorch": pytorch, "tensorflow": tensorflow}


def _rule_of(framework: ModuleType) -> Rule:
    def rule(context: OpContext) -> None:
        if "op_type" not in context:
            context.update(framework.keys(context))
        if context.is_backward() and "op_type" in context:
            context["grad_roles"] = framework.grad_roles(context)

    return rule


STANDARD_RULES: Final[tuple[tuple[str, Rule], ...]] = tuple((name, _rule_of(one)) for name, one in _FRAMEWORKS.items())
"""Rules for `MappingTool`: they write the keys that `vocabulary` describes."""


def keys_of(context: OpContext) -> dict[str, Any]:
    """The keys that `vocabulary` would write into the context of this forward operator."""
    framework = _FRAMEWORKS.get(context.namespace.partition("/")[0])
    return {} if framework is None else framework.keys(context)


def vocabulary() -> MappingTool:
    """A mapping tool with `STANDARD_RULES`. A tool that depends on it is the same for PyTorch and TensorFlow::

        class WeightNorms(amanda.Tool):
            def __init__(self):
                super().__init__()
                self.depends_on(vocabulary())
                self.add_inst_for_op(self.analyze, ops=names_of("conv2d", "matmul", "linear"))

            def analyze(self, context):
                if "weight" in context["roles"]:
                    context.insert_before_op(self.look, inputs=[context["roles"]["weight"]])

    Contexts of operators in `VOCABULARY` get these keys; other operators get none of them:

    - ``context["op_type"]``: the word, such as "conv2d". In a backward context, of the forward operator.
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
    return MappingTool(STANDARD_RULES)
