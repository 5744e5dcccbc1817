"""The ids of operators in programs that several callers call, for the tests of amanda.root."""

import functools

import amanda
import torch
from torch import nn

X = torch.ones(2)


class Ids(amanda.Tool):
    """Lists the id of every run."""

    def __init__(self, **options):
        super().__init__()
        self.runs = []
        self.add_inst_for_op(self.analyze, **options)

    def analyze(self, context):
        context.insert_before_op(lambda id: self.runs.append(id), inputs=[], id=context.op_id)


def ids(*programs, **options):
    """Of all that the programs run, in one scope."""
    tool = Ids(**options)
    with amanda.apply(tool):
        for program in programs:
            program()
    return tool.runs


def from_here(program):
    return program()


def from_there(program):
    result = program()
    return result


CALLERS = (from_here, from_there, lambda program: program())


def ids_by_caller(program):
    """The ids that the program's operators have, for each of three callers."""
    return [ids(functools.partial(call, program)) for call in CALLERS]


@amanda.root
def loss(prediction=X, target=X):
    return ((prediction - target) ** 2).mean()


def unrooted():
    return X.relu()


class Model(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.layer, self.activation = nn.Linear(2, 2), activation

    def forward(self, x):
        return self.activation(self.layer(x))
