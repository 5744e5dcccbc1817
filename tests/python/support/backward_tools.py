"""What the tests of backward operators share: tools that watch or schedule, and an independent walk over the graph."""

from collections import Counter

import amanda
import torch


class Watcher(amanda.Tool):
    """Looks at every backward operator of `ops`, in all ways there are, and changes nothing.

    `seen` holds (operator, backward operator) as analysed, `ids` their ids, `trace` what ran: "SinBackward0<" before,
    "SinBackward0>" after.
    """

    def __init__(self, ops=None, *, name=None, nested=False, trace=None):
        super().__init__(name)
        self.prefix = f"{name}:" if name else ""
        self.seen, self.ids, self.contexts = [], [], []
        self.trace = [] if trace is None else trace
        self.add_inst_for_op(self.analyse, ops=ops, nested=nested, backward=True)

    def analyse(self, context):
        name = context.backward_op.__name__
        self.seen.append((context.op.__name__, name))
        self.ids.append((context.op_id, context.backward_op_id, name))
        self.contexts.append(context)
        context.insert_before_backward_op(self.before, name=name)
        context.insert_after_backward_op(self.after, name=name)

    def before(self, *grad_outputs, name):
        self.trace.append(f"{self.prefix}{name}<")

    def after(self, *grad_inputs, name):
        self.trace.append(f"{self.prefix}{name}>")

    def nodes(self, op):
        """The names of the backward operators of `op`, as analysed."""
        return [node for of, node in self.seen if of == op]

    def count(self, side=">"):
        """How often each backward operator ran."""
        return Counter(event[:-1] for event in self.trace if event.endswith(side))


class Scheduled(amanda.Tool):
    """Schedules `routine` at one point ("before", "after", "replace") of the backward operators called `node`."""

    def __init__(self, point, node, routine, positions=None, *, ops=None, name="tool", forward=False, **options):
        super().__init__(name)
        self.point, self.node, self.routine, self.positions, self.options = point, node, routine, positions, options
        self.actions = []
        self.add_inst_for_op(self.schedule if forward else self.analyse, ops=ops, backward=not forward)

    def analyse(self, context):
        if context.backward_op.__name__ == self.node:
            self.schedule(context)

    def schedule(self, context):
        schedule = {
            "before": context.insert_before_backward_op,
            "after": context.insert_after_backward_op,
            "replace": context.replace_backward_op,
        }[self.point]
        self.actions.append(schedule(self.routine, self.positions, **self.options))


class ReplaceAll(amanda.Tool):
    """Replaces every backward operator that can be, by itself."""

    def __init__(self, ops=None):
        super().__init__()
        self.runs = Counter()
        self.add_inst_for_op(self.analyse, ops=ops, backward=True)

    def analyse(self, context):
        if context.backward_op.__name__ != "AccumulateGrad":
            context.replace_backward_op(self.run_original, op=context.backward_op)

    def run_original(self, *grad_outputs, op):
        self.runs[op.__name__] += 1
        return op(*grad_outputs)


def leaf(*shape, **options):
    return torch.randn(*shape, requires_grad=True, **options)


def gradients(program, *leaves):
    """The leaves' gradients after program(*leaves) went backward."""
    for each in leaves:
        each.grad = None
    program(*leaves).sum().backward()
    return [each.grad for each in leaves]


def under(tools, program, *leaves, runs=3):
    """Gradients of each run under the tools."""
    with amanda.apply(*([tools] if isinstance(tools, amanda.Tool) else tools)):
        return [gradients(program, *leaves) for _ in range(runs)]


def graph_nodes(*results):
    """All autograd nodes that these tensors lead to: an oracle that knows nothing of operators."""
    found, open_ = set(), [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    while open_:
        node = open_.pop()
        if node not in found:
            found.add(node)
            open_.extend(following for following, _ in node.next_functions if following is not None)
    return found


def graph_names(*results):
    return Counter(node.name().rsplit("::", 1)[-1] for node in graph_nodes(*results))


def same(got, expected):
    """Bit for bit, and of one dtype."""
    pairs = list(zip(got, expected, strict=True))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
