"""TensorFlow: variables, their gradients, and losses. Importing this module imports tensorflow.

`variable_of` and `variable_behind` find the variable whose value a symbol is; `MOVES` are the operators that pass one on.
`number_of` gives the number that a tensor always is, and `is_constant` is true for a value that a graph holds.
`roles_of` lists the roles of a symbol in a training step, each a `Role`: the gradient of a variable, or a loss.
`listen_to_roles` calls a function with the values of eager code that have one. `trained_by` lists the variables that a
model or an optimizer trains, each a `Trained`. `listen_to_passed` calls a function with each sum of gradients, and each
write to a variable, of eager code, a `Passed`; `summands_of` has the symbols of which a graph's value is the sum, and
`WRITES` the operators that write to variables.
"""

from amanda.driver.protocol import VariableValue
from amanda.drivers.tensorflow.view.numbers import is_constant, number_of
from amanda.drivers.tensorflow.view.passing import WRITES, Passed, summands_of
from amanda.drivers.tensorflow.view.passing import listen as listen_to_passed
from amanda.drivers.tensorflow.view.trained import Trained, trained_by
from amanda.drivers.tensorflow.view.variable_gradients import Role, roles_of
from amanda.drivers.tensorflow.view.variable_gradients import listen as listen_to_roles
from amanda.drivers.tensorflow.view.variables import MOVES, variable_behind, variable_of

__all__ = [
    "MOVES",
    "WRITES",
    "Passed",
    "Role",
    "Trained",
    "VariableValue",
    "is_constant",
    "listen_to_passed",
    "listen_to_roles",
    "number_of",
    "roles_of",
    "summands_of",
    "trained_by",
    "variable_behind",
    "variable_of",
]
