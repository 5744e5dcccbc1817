"""What is active in a row of the table about compiled programs: tools in a scope, or what PyTorch itself offers."""

import torch
from configurations import counter
from torch.utils._debug_mode import DebugMode
from torch.utils.debug_log import debug_grad_log

NOBODY_ASKS = "scope open, nobody asks"


def looking(**options):
    from amanda import _tools
    from amanda.tool import NativeTool

    return NativeTool(_tools.counting_tool(looks=True, backward=True, **options))


def editing():
    from amanda import _tools
    from amanda.tool import NativeTool

    return NativeTool(_tools.editing_tool(["linear"]))


def mask():
    """Zeros in half of each weight, by a routine that the compiler sees."""
    import amanda

    tool = amanda.Tool("mask")

    def analyze(context):
        kept = torch.rand_like(context.inputs[1]) < 0.5
        context.insert_before_op(lambda weight: weight * kept, inputs=["weight"], traceable=True)

    tool.add_inst_for_op(analyze, ops="linear")
    return tool


TOOLS = {
    NOBODY_ASKS: lambda: counter(ops="amanda_bench::no_such_operator"),
    "C++ routine that looks, each linear, forward and backward": lambda: looking(ops=["linear"]),
    "C++ routine that looks, every operator, forward and backward": looking,
    "C++ routine that may edit, result of each linear": editing,
    "Python routine that looks, each linear, forward and backward": lambda: counter(ops="linear", backward=True),
    "traceable mask, weight of each linear": mask,
}


# ---- peers: hooks become a part of what is compiled, so each has a model of its own ----------------------------------


class Calls:
    count = 0


@torch.compiler.disable
def count_and_break(module, inputs, output):
    Calls.count += 1


@torch.library.custom_op("amanda_bench::look", mutates_args=())
def look(x: torch.Tensor) -> torch.Tensor:
    Calls.count += 1
    return x.clone()  # the result of a custom operator must not be its input


look.register_fake(torch.empty_like)
look.register_autograd(lambda context, gradient: gradient)


def hook_custom_operator(module, inputs, output):
    return look(output)


def hook_debug_log(module, inputs, output):
    debug_grad_log(output)


HOOKS = {
    "module hooks, each linear, forward (graph breaks)": count_and_break,
    "custom operator in module hooks, each linear, forward": hook_custom_operator,
    "torch.utils.debug_log in module hooks, each linear, backward (norms)": hook_debug_log,
}
MODES = {"DebugMode (sees nothing inside compiled code)": DebugMode}
NAMES = [*TOOLS, *HOOKS, *MODES]


def hooked(model, hook):
    """Dynamo has no guards on hooks: with classes of its own, the model does not run what was compiled for another."""
    own = {kind: type(kind.__name__, (kind,), {}) for kind in {type(module) for module in model.modules()}}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(hook)
        module.__class__ = own[type(module)]
    return model
