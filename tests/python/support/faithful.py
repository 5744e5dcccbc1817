"""Tools that must not change a program: one that looks at everything, and two that return what they got."""

from collections import Counter

import amanda


class Look(amanda.Tool):
    """Is shown every operand before and after every operator, forward and backward, outermost and inner ones.

    `forward` and `backward` count what ran, by name.
    """

    def __init__(self):
        super().__init__()
        self.forward, self.backward = Counter(), Counter()
        self.add_inst_for_op(self.analyse, nested=True)
        self.add_inst_for_op(self.analyse_backward, nested=True, backward=True)

    def analyse(self, context):
        context.insert_before_op(self.before)
        context.insert_after_op(self.after, name=context.op.__name__)

    def analyse_backward(self, context):
        context.insert_before_backward_op(self.before)
        context.insert_after_backward_op(self.after_backward, name=context.backward_op.__name__)

    def before(self, *values):
        pass

    def after(self, *values, name):
        self.forward[name] += 1

    def after_backward(self, *values, name):
        self.backward[name] += 1


class HandBack(amanda.Tool):
    """Returns the very objects it was given, before and after every operator, forward and backward."""

    def __init__(self):
        super().__init__()
        self.add_inst_for_op(self.analyse, nested=True)
        self.add_inst_for_op(self.analyse_backward, nested=True, backward=True)

    def analyse(self, context):
        context.insert_before_op(self.same)
        context.insert_after_op(self.same)

    def analyse_backward(self, context):
        context.insert_before_backward_op(self.same)
        context.insert_after_backward_op(self.same)

    def same(self, *values):
        return values


class RunOriginal(amanda.Tool):
    """Replaces every operator, forward and backward, by itself. `kept` has those that refuse, with what they say."""

    def __init__(self):
        super().__init__()
        self.kept = {}
        self.add_inst_for_op(self.analyse)
        self.add_inst_for_op(self.analyse_backward, backward=True)

    def analyse(self, context):
        try:
            context.replace_op(self.run, op=context.op, allow_view=True)
        except amanda.Error as error:
            self.kept[context.op.__name__] = str(error).rpartition(": ")[2]

    def analyse_backward(self, context):
        if context.backward_op.__name__ != "AccumulateGrad":
            context.replace_backward_op(self.run, op=context.backward_op)

    def run(self, *values, op):
        return op(*values)
