"""PyTorch: what tools for it need and torch has no public name for. Importing this module imports torch.

`parameter_name`, `outermost_modules`, `running_modules`, `named_parts` and `held` find modules, parameters and their names.
`graph_task_id` is the number of the backward pass that this thread runs, -1 outside of one; `running_leaf` is the leaf
whose gradient it accumulates; `checkpointed_regions` lists the checkpointed regions that it runs. `functorch_level`,
`functorch_stack`, `get_unwrapped`, `WithoutFunctorch` and `FUNCTIONALIZE` are about transformations of torch.func. The
other names are torch's own, and are the same in all versions of torch for which there is a driver.
"""

from amanda._torch import framework_probe, undeclared_writes
from amanda.drivers.torch.identity.call_path import running_modules
from amanda.drivers.torch.identity.models import held, named_parts
from amanda.drivers.torch.identity.parameter_names import all_outermost as outermost_modules
from amanda.drivers.torch.identity.parameter_names import name_of as parameter_name
from amanda.drivers.torch.port import (
    FUNCTIONALIZE,
    RUN_MODULE,
    StorageWeakRef,
    WithoutFunctorch,
    WithoutTorchFunction,
    checkpointed_regions,
    functorch_level,
    functorch_stack,
    get_unwrapped,
    graph_task_id,
    is_legacy_batched,
    parse_schema,
    running_leaf,
    saved_tensor_hooks,
)

__all__ = [
    "FUNCTIONALIZE",
    "RUN_MODULE",
    "StorageWeakRef",
    "WithoutFunctorch",
    "WithoutTorchFunction",
    "checkpointed_regions",
    "framework_probe",
    "functorch_level",
    "functorch_stack",
    "get_unwrapped",
    "graph_task_id",
    "held",
    "is_legacy_batched",
    "named_parts",
    "outermost_modules",
    "parameter_name",
    "parse_schema",
    "running_leaf",
    "running_modules",
    "saved_tensor_hooks",
    "undeclared_writes",
]
