"""TensorFlow: variables, their gradients, and losses. Importing this module imports tensorflow.

`variable_of` and `variable_behind` find the variable whose value a symbol is; `MOVES` are the operators that pass one on.
`number_of` gives the number that a tensor always is.
`roles_of` lists the roles of a symbol in a training step, each a `Role`: the gradient of a variable, or a loss.
`listen_to_roles` calls a function with the values of eager code that have one. `trained_by` lists the variables that a
model or an optimizer trains, each a `Trained`.
"""

from amanda.driver.protocol import VariableValue
from amanda.drivers.tensorflow.view.numbers import number_of
from amanda.drivers.tensorflow.view.trained import Trained, trained_by
from amanda.drivers.tensorflow.view.variable_gradients import Role, roles_of
from amanda.drivers.tensorflow.view.variable_gradients import listen as listen_to_roles
from amanda.drivers.tensorflow.view.variables import MOVES, variable_behind, variable_of

__all__ = [
    "MOVES",
    "Role",
    "Trained",
    "VariableValue",
    "listen_to_roles",
    "number_of",
    "roles_of",
    "trained_by",
    "variable_behind",
    "variable_of",
]
