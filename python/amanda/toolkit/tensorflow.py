"""TensorFlow: which variable a value of a graph is. Importing this module imports tensorflow."""

from amanda.driver.protocol import VariableValue
from amanda.drivers.tensorflow.view.variables import MOVES, variable_behind, variable_of

__all__ = ["MOVES", "VariableValue", "variable_behind", "variable_of"]
