"""TensorFlow: which variable a value of a graph is. Importing this module imports tensorflow."""

from amanda.drivers.tensorflow.view.variables import MOVES, VariableValue, variable_behind, variable_of

__all__ = ["MOVES", "VariableValue", "variable_behind", "variable_of"]
