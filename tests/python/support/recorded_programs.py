"""What the driver learns of a function that is compiled, and the function with every node replaced by its calls."""

import collections

import amanda
import torch
from torch._dynamo.backends.registry import lookup_backend


class Recorded:
    """`programs`: one for each graph that was compiled."""

    def __init__(self, rewrite=True):
        with amanda.apply(amanda.Tool()):  # attaches the driver
            torch.ones(())
        self.programs, self.rewrite = [], rewrite

    def __call__(self, gm, example_inputs):
        from amanda.drivers.torch_compile.program.program import Program

        program = Program(gm, example_inputs)
        self.programs.append(program)
        lowered = rewritten(program) if self.rewrite else gm
        return lookup_backend("aot_eager")(lowered, example_inputs)

    @property
    def calls(self):
        return [call for program in self.programs for call in program.calls]

    @property
    def unseen(self):
        return [entry for program in self.programs for entry in program.unseen]

    def call(self, name):
        """The only one of that name."""
        (found,) = [call for call in self.calls if call.name == name]
        return found


def record(function, *args, rewrite=True, dynamic=None, **kwargs):
    """(what it returns, compiled; what was recorded)"""
    torch._dynamo.reset()
    recorded = Recorded(rewrite)
    torch.manual_seed(0)
    result = torch.compile(function, backend=recorded, dynamic=dynamic)(*args, **kwargs)
    return result, recorded


def rewritten(program):
    """A copy of its graph, in which each node is the calls that it makes."""
    graph, copies = torch.fx.Graph(), {}
    for node in program.gm.graph.nodes:
        if program.calls_of(node) and not any(call.args is None for call in program.calls_of(node)):
            copies[node] = program.as_nodes(
                graph, node, copies, lambda call, args: program.emit_call(graph, call, args)
            )
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if hasattr(node, "_dynamo_source"):
            copies[node]._dynamo_source = node._dynamo_source
    made = torch.fx.GraphModule(program.gm, graph)
    made.meta, made._param_name_to_source = dict(program.gm.meta), program.gm._param_name_to_source
    return made


def eager_operators(function, *args, **kwargs):
    """The operators that tools see in an eager run."""
    seen = []

    def analyze(context):
        op = context.op
        name = f"{op.name}.{op.overload}" if op.overload else op.name
        context.insert_before_op(lambda name: seen.append(name), [], name=name)

    tool = amanda.Tool("look")
    tool.add_inst_for_op(analyze)
    torch.manual_seed(0)
    with amanda.apply(tool):
        function(*args, **kwargs)
    return seen


def compiled_operators(recorded):
    return [call.op.name() for call in recorded.calls]


def difference(eager, compiled):
    """(only in eager mode, only compiled), with counts."""
    eager, compiled = collections.Counter(eager), collections.Counter(compiled)
    return dict(eager - compiled), dict(compiled - eager)
