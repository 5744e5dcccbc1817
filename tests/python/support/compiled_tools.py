"""Tools and backends for tests of compiled functions."""

import amanda
import torch


class Seen(amanda.Tool):
    """What it was shown, and what ran, by name."""

    def __init__(self, **filters):
        super().__init__("Seen")
        self.shown, self.ran = [], []
        self.add_inst_for_op(self.analyze, **filters)

    def analyze(self, context):
        self.shown.append((context.op.name, context.is_symbolic))
        context.insert_before_op(self.note, inputs=[], name=context.op.name)

    def note(self, name):
        self.ran.append(name)

    def taken(self):
        """What ran since the last call."""
        ran, self.ran = self.ran, []
        return ran


class Doubled(amanda.Tool):
    """Doubles the results of operators of a type."""

    def __init__(self, ops="relu"):
        super().__init__("Doubled")
        self.add_inst_for_op(lambda context: context.insert_after_op(lambda y: y * 2), ops=ops)


class Counting:
    """A backend that counts the graphs that it compiles."""

    def __init__(self, name="aot_eager"):
        self.name, self.count = name, 0

    def __call__(self, gm, example_inputs):
        self.count += 1
        return torch._dynamo.lookup_backend(self.name)(gm, example_inputs)
