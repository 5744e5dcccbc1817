"""The parts that tools are built of. Every shipped tool uses this package and the public names of `amanda`, nothing else.

Results
    `Results` gives a tool `rows`, `table`, `to_pandas` and files, in one or more `Grouping`; `AnnotatedResults` also shows
    the source code with them. `Column` and `name_column`, `number_column`, `percentage_column` and `general_column` are
    columns of tables; `fields_of` lists those of data frames; `Progress` is a bar. See also `toolkit.tables`,
    `toolkit.answers`, `toolkit.figures`, `toolkit.pages`, `toolkit.notebooks`, `toolkit.chrome_trace`, `toolkit.durations`
    and `toolkit.tensor_file`.
Places
    `Place` is an operator at its place in the program, and `PlaceRow` the base of rows about one. `GroupBy`,
    `PLACE_FIELDS` and `place_groupings` are the common groupings; `counted_groupings` and `grouped` are for rows that add
    up. `Where` is an argument that selects operators. See also `toolkit.frames`.
Evidence
    `Skips` reads values, and counts those that it cannot read; `TellsSkips` gives a tool the property that reports them.
    `Unseen` is what a tool did not look at. `eager_only` and `frameworks` leave out operators of compiled functions and of
    other frameworks. See also `toolkit.evidence`.
Values
    `arrays_of` finds the `Arrays` with which a tool computes with tensors of PyTorch and with arrays of numpy alike;
    `arrays_in` and `array_in` find the arrays in an operand and in a program's result. `MEMORY` knows which memory has no
    values yet. See also `toolkit.schemas`, for what operators do to their operands.
Parameters
    `ParameterUse` knows which parameters operators compute with, and which of them a tool left as they are;
    `TellsParameters` gives a tool the properties that report them. See also `toolkit.loss_scaling`,
    `toolkit.optimizer_phase`, `toolkit.optimizers` and `toolkit.fused_layers`.
Arguments
    `toolkit.arguments` checks what users give to tools.
Threads and processes
    `lock` and `rlock` are locks that are free in a forked child. `own_work` is a context for operators of the tool itself,
    `preserved` one that restores what a run changes. `warn_here` warns at the program's line, and `this_rank` is the `Rank`
    of this process.
C++
    `natively` finds the routines in C++ that serve an operator; `NativeRoutine` and `NativeTool` wrap routines and tools.
Frameworks
    `toolkit.operators` for all of them, `toolkit.torch`, `toolkit.kernels`, `toolkit.inner_calls` and `toolkit.tensorflow`
    for one. The last four import their framework, and nothing else here imports one; `deferred` lets a package import such
    modules late. `toolkit.compiled` shows the graphs of compiled functions, and compiles others. `toolkit.onnx` reads what
    PyTorch's exporter says of a node of a file.

The names in `__all__` of these modules are public. `VERSION` changes when one of them is removed or gets another meaning.
"""

from amanda.toolkit import deferred, eager_only, frameworks
from amanda.toolkit.arrays import Arrays, array_in, arrays_in, arrays_of
from amanda.toolkit.evidence import Unseen
from amanda.toolkit.locks import lock, rlock
from amanda.toolkit.native import NativeRoutine, NativeTool, natively
from amanda.toolkit.parameters import ParameterUse, TellsParameters
from amanda.toolkit.places import PLACE_FIELDS, GroupBy, Place, PlaceRow, counted_groupings, grouped, place_groupings
from amanda.toolkit.programs import Rank, own_work, preserved, this_rank, warn_here
from amanda.toolkit.skips import Skips, TellsSkips
from amanda.toolkit.tables import (
    AnnotatedResults,
    Column,
    Grouping,
    Progress,
    Results,
    fields_of,
    general_column,
    name_column,
    number_column,
    percentage_column,
)
from amanda.toolkit.unwritten import MEMORY
from amanda.toolkit.where import Where

VERSION = 1

__all__ = [
    "MEMORY",
    "PLACE_FIELDS",
    "VERSION",
    "AnnotatedResults",
    "Arrays",
    "Column",
    "GroupBy",
    "Grouping",
    "NativeRoutine",
    "NativeTool",
    "ParameterUse",
    "Place",
    "PlaceRow",
    "Progress",
    "Rank",
    "Results",
    "Skips",
    "TellsParameters",
    "TellsSkips",
    "Unseen",
    "Where",
    "array_in",
    "arrays_in",
    "arrays_of",
    "counted_groupings",
    "deferred",
    "eager_only",
    "fields_of",
    "frameworks",
    "general_column",
    "grouped",
    "lock",
    "name_column",
    "natively",
    "number_column",
    "own_work",
    "percentage_column",
    "place_groupings",
    "preserved",
    "rlock",
    "this_rank",
    "warn_here",
]
