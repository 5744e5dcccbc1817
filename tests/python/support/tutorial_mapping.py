"""The tutorial's rules of a mapping tool, word for word, and the tool that counts with them."""

import amanda
from amanda.tools.mapping import MappingTool

# fmt: off
# ruff: noqa: W293 -- as printed


def torch_op_name_rule(context: amanda.OpContext):
    context["op_name"] = context.get_op().__name__
    context["backward_op_name"] = context.get_backward_op().__name__ if context.get_backward_op() is not None else None


def tf_op_name_rule(context: amanda.OpContext):
    context["op_name"] = context.get_op().name if context.get_op() is not None else None
    context["backward_op_name"] = context.get_backward_op().name if context.get_backward_op() is not None else None

mapping_tool = MappingTool(
    rules=[
        ["pytorch", torch_op_name_rule],
        ["tensorflow", tf_op_name_rule],
    ]
)


# The tutorial prints two classes of one name; the later one is renamed here.
class MappedCountOPTool(amanda.Tool):
    def __init__(self, op_name: str, backward_op_name: str):
        super().__init__()

        # specify tool dependencies
        self.depends_on(mapping_tool)

        self.counter = 0
        self.backward_counter = 0
        self.op_name = op_name
        self.backward_op_name = backward_op_name
        self.add_inst_for_op(self.callback)
        self.add_inst_for_op(self.backward_callback, backward=True, require_outputs=True)

    # analysis routine, filter conv2d operators
    def callback(self, context: amanda.OpContext):
        if self.op_name in context["op_name"]:
            context.insert_before_op(self.counter_op)

    # analysis routine, filter conv2d operators
    def backward_callback(self, context: amanda.OpContext):
        if self.backward_op_name in context["backward_op_name"]:
            context.insert_after_backward_op(self.counter_backward_op)

    # instrumentation routine: op for counting
    def counter_op(self, *inputs):
        self.counter += 1
        return inputs
    
    def counter_backward_op(self, *inputs):
        self.backward_counter += 1
        return inputs
# fmt: on
