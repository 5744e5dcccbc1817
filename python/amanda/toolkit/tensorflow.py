"""TensorFlow: variables, their gradients, and losses. Importing this module imports tensorflow.

`variable_of` and `variable_behind` find the variable whose value a symbol is; `MOVES` are the operators that pass one
on.
`number_of` gives the number that a tensor always is, `numbers_of` those of a vector of whole numbers, `sizes_of` those
of a shape, and `is_constant` is true for a value that a graph holds.
`roles_of` lists the roles of a symbol in a training step, each a `Role`: the gradient of a variable, or a loss.
`listen_to_roles` calls a function with the values of eager code that have one. `trained_by` lists the variables that a
model or an optimizer trains, each a `Trained`. `steps_of` counts the steps of an optimizer of Keras, `kept_by` the
variables that it keeps, `rate_of` is its learning rate, and `schedule_of` the schedule of that. `listen_to_passed`
calls a function with each sum of gradients, and each write to a variable, of eager code, a `Passed`. `summands_of` has
the symbols of which a graph's value is the sum. `WRITES` are the operators that write to variables.
`differentiated_in` lists the gradients that a symbol's graph asks for, each a `Differentiated`, and
`listen_to_differentiated` calls a function with those of eager code. `paths_of` follows a variable to what a graph
differentiates, and `ends_where` to operators that a function chooses. `why_closed` is the reason why an operator passes
no gradient on. `is_recorded` is true while a tape records eager code. `listen_to_reads` calls a function when eager
code reads a variable, or calls a function that is a graph.
`maker_of` is the operator of a graph that makes a value. `uses_of` lists the operators of a graph that get a variable
on the way to what it differentiates, a `Uses`. `untracked` lists the variables that layers of Keras have and do not
train, each an `Untracked`, `layers_with` the layers with a method at a line, and `elements_of` reads some elements of a
variable. `loss_scale_of` is what an optimizer of Keras divides gradients by, a `LossScale`. `lost_mask` finds a mask of
padding that nothing uses, a `LostMask`. `unfrozen_inside` lists frozen layers of Keras with layers in them that are
not.
`address_of` is where the elements of an eager tensor or of a variable are. `stored` lists all variables, each a
`Stored`, with their bytes, and `eager_tensors` all eager tensors that have numbers. `EagerTensor` is their class, and
`SymbolicTensor` that of symbols. `traces` counts the graphs of functions, by name, `function_graphs` lists them, and
`function_of` is the name of a symbol's.
`lines_of` has the lines that a symbol of one was traced from, and `tracings` those of each function object;
`why_traced` is the reason, a `Traced`. `written` counts the operators of a session's graph by line. `listen_to_results`
calls a function with what eager operators, and functions that eager code calls, return, and `in_gradient` is true while
this thread computes gradients in eager code. `key_of` is the key of the variable that an eager resource is. `value_key`
is the same for all symbols of a graph that have one value.
"""

import tensorflow  # noqa: F401 - first: our driver follows this import, and must find its own modules whole

from amanda.driver.protocol import VariableValue
from amanda.drivers.tensorflow.eager.looking import in_gradient
from amanda.drivers.tensorflow.eager.operands import address_of, is_recorded
from amanda.drivers.tensorflow.port import EagerTensor, SymbolicTensor
from amanda.drivers.tensorflow.view.differentiated import Differentiated, Sought, differentiated_in
from amanda.drivers.tensorflow.view.differentiated import listen as listen_to_differentiated
from amanda.drivers.tensorflow.view.frozen import unfrozen_inside
from amanda.drivers.tensorflow.view.gradient_paths import (
    End,
    Paths,
    Stop,
    Uses,
    ends_where,
    maker_of,
    paths_of,
    uses_of,
    why_closed,
)
from amanda.drivers.tensorflow.view.loss_scales import LossScale, loss_scale_of
from amanda.drivers.tensorflow.view.masks import LostMask, lost_mask
from amanda.drivers.tensorflow.view.numbers import is_constant, number_of, numbers_of, sizes_of
from amanda.drivers.tensorflow.view.passing import WRITES, Passed, listen_to_reads, listen_to_results, summands_of
from amanda.drivers.tensorflow.view.passing import listen as listen_to_passed
from amanda.drivers.tensorflow.view.stored import Stored, eager_tensors, stored, tracings
from amanda.drivers.tensorflow.view.traced import (
    Traced,
    function_graphs,
    function_of,
    lines_of,
    traces,
    why_traced,
    written,
)
from amanda.drivers.tensorflow.view.trained import Trained, kept_by, rate_of, schedule_of, steps_of, trained_by
from amanda.drivers.tensorflow.view.untracked import Untracked, elements_of, layers_with, untracked
from amanda.drivers.tensorflow.view.variable_gradients import Role, roles_of
from amanda.drivers.tensorflow.view.variable_gradients import listen as listen_to_roles
from amanda.drivers.tensorflow.view.variables import MOVES, key_of, value_key, variable_behind, variable_of

__all__ = [
    "MOVES",
    "WRITES",
    "Differentiated",
    "EagerTensor",
    "End",
    "LossScale",
    "LostMask",
    "Passed",
    "Paths",
    "Role",
    "Sought",
    "Stop",
    "Stored",
    "SymbolicTensor",
    "Traced",
    "Trained",
    "Untracked",
    "Uses",
    "VariableValue",
    "address_of",
    "differentiated_in",
    "eager_tensors",
    "elements_of",
    "ends_where",
    "function_graphs",
    "function_of",
    "in_gradient",
    "is_constant",
    "is_recorded",
    "kept_by",
    "key_of",
    "layers_with",
    "lines_of",
    "listen_to_differentiated",
    "listen_to_passed",
    "listen_to_reads",
    "listen_to_results",
    "listen_to_roles",
    "loss_scale_of",
    "lost_mask",
    "maker_of",
    "number_of",
    "numbers_of",
    "paths_of",
    "rate_of",
    "roles_of",
    "schedule_of",
    "sizes_of",
    "steps_of",
    "stored",
    "summands_of",
    "traces",
    "tracings",
    "trained_by",
    "unfrozen_inside",
    "untracked",
    "uses_of",
    "value_key",
    "variable_behind",
    "variable_of",
    "why_closed",
    "why_traced",
    "written",
]
