"""PyTorch: what tools for it need and torch has no public name for. Importing this module imports torch.

`parameter_name`, `outermost_modules`, `running_modules`, `named_parts` and `held` find modules, parameters and their names.
`graph_task_id` is the number of the backward pass that this thread runs, -1 outside of one; `current_node` is the node of
the backward graph that it runs, and `running_leaf` the leaf whose gradient it accumulates. `checkpointed_regions` lists the
checkpointed regions that it runs, and `running_function` names the autograd.Function that it applies. `listen_to_backward`
calls a `BackwardListener` before and after each backward pass, with a `BackwardCall`. `functorch_level`, `functorch_stack`,
`get_unwrapped`, `WithoutFunctorch` and `FUNCTIONALIZE` are about transformations of torch.func; `differentiates_forward` is
about forward-mode differentiation. `after_all_modules` calls a hook after each call of a module. The other names are
torch's own, and are the same in all versions of torch for which there is a driver.

`explained_by` asks a tool about two of PyTorch's errors, where a backward pass raises them: "modified by an inplace
operation", and "backward through the graph a second time".
`next_sequence_number` is what a thread's next node of the backward graph gets as `_sequence_nr()`.
"""

from amanda._torch import framework_probe, undeclared_writes
from amanda.drivers.torch.backward_errors import OVERWRITTEN_NOTE, explained_by, is_explained
from amanda.drivers.torch.backward_pass import BackwardCall, BackwardListener, listen_to_backward
from amanda.drivers.torch.functions import running_function
from amanda.drivers.torch.identity.call_path import running_modules
from amanda.drivers.torch.identity.models import held, named_parts
from amanda.drivers.torch.identity.parameter_names import all_outermost as outermost_modules
from amanda.drivers.torch.identity.parameter_names import name_of as parameter_name
from amanda.drivers.torch.port import (
    FUNCTIONALIZE,
    RUN_MODULE,
    StorageWeakRef,
    TensorBase,
    WeakTensorRef,
    WithoutFunctorch,
    WithoutTorchFunction,
    after_all_modules,
    checkpointed_regions,
    creation_of_view,
    current_node,
    differentiates_forward,
    disabled_torch_function,
    functorch_level,
    functorch_stack,
    get_unwrapped,
    graph_task_id,
    is_functional,
    is_legacy_batched,
    make_wrapper,
    next_sequence_number,
    parse_schema,
    running_leaf,
    saved_tensor_hooks,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "FUNCTIONALIZE",
    "OVERWRITTEN_NOTE",
    "RUN_MODULE",
    "BackwardCall",
    "BackwardListener",
    "StorageWeakRef",
    "TensorBase",
    "WeakTensorRef",
    "WithoutFunctorch",
    "WithoutTorchFunction",
    "after_all_modules",
    "checkpointed_regions",
    "creation_of_view",
    "current_node",
    "differentiates_forward",
    "disabled_torch_function",
    "explained_by",
    "framework_probe",
    "functorch_level",
    "functorch_stack",
    "get_unwrapped",
    "graph_task_id",
    "held",
    "is_explained",
    "is_functional",
    "is_legacy_batched",
    "listen_to_backward",
    "make_wrapper",
    "named_parts",
    "next_sequence_number",
    "outermost_modules",
    "parameter_name",
    "parse_schema",
    "running_function",
    "running_leaf",
    "running_modules",
    "saved_tensor_hooks",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
    "undeclared_writes",
]
