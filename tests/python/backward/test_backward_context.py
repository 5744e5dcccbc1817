"""What an analysis routine sees of a backward operator, and when."""

import gc
import weakref

import amanda
import pytest
import torch
import torch.nn.functional as F
from backward_tools import Watcher

nn = torch.nn


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Asking(amanda.Tool):
    """Collects ask(context) of each backward analysis, by the name of the node."""

    def __init__(self, ask, ops=None, **options):
        super().__init__()
        self.ask, self.answers, self.runs = ask, {}, 0
        self.add_inst_for_op(self.analyse, ops=ops, backward=True, **options)

    def analyse(self, context):
        self.runs += 1
        self.answers.setdefault(context.backward_op.__name__, []).append(self.ask(context))


def test_what_it_is():
    tool = Asking(
        lambda c: (c.is_backward(), c.is_forward(), c.op.name, c.namespace, c.is_recompute, c.is_symbolic, c.depth),
        ops="sin",
    )
    with amanda.apply(tool):
        leaf(3).sin().sum().backward()
    version = ".".join(torch.__version__.split(".")[:2])
    told = (True, False, "aten::sin", f"pytorch/{version}/eager", False, False, 0)
    assert tool.answers == {"SinBackward0": [told], "AccumulateGrad": [told]}


def test_the_operator_and_its_ids_are_the_forward_operators():
    forward, x = [], leaf(3)
    tool = Asking(lambda c: (c.op_id, c.backward_op_id, c.get_op() == c.op))
    tool.add_inst_for_op(
        lambda c: forward.append((c.op.__name__, c.op_id, c.get_backward_op(), c.get_backward_op_id())),
        ops=["sin", "exp"],
    )
    with amanda.apply(tool):
        y = x.sin().exp().sum()
        y.backward()
    ids = {name: op_id for name, op_id, *_ in forward}
    assert [(op, op_id) for _, _, op, op_id in forward] == [(None, None)] * 2
    assert [answer[0] for answer in tool.answers["ExpBackward0"]] == [ids["exp"]]
    assert [answer[0] for answer in tool.answers["SinBackward0"]] == [ids["sin"]]
    assert tool.answers["AccumulateGrad"][0][0] == ids["sin"]


def test_module_path_and_source():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    places = []
    tool = Asking(lambda c: (c.module_path, c.source), ops="linear")
    tool.add_inst_for_op(lambda c: places.append((c.module_path, c.source)), ops="linear")
    with amanda.apply(tool):
        Model()(torch.ones(2, 3)).sum().backward()
    assert [path for path, _ in places] == ["layers.0", "layers.1"]
    assert tool.answers["AddmmBackward0"] == places[::-1]


def test_keys_are_copied_from_the_forward_context():
    tool, seen = amanda.Tool(), []
    tool.add_inst_for_op(lambda c: c.update(mask=[1], name="forward"), ops="sin")

    def analyse(context):
        seen.append((context.backward_op.__name__, dict(context)))
        context["name"] = context.backward_op.__name__

    tool.add_inst_for_op(analyse, ops="sin", backward=True)
    tool.add_inst_for_op(analyse, ops="sin", backward=True, require_outputs=True)
    x = leaf(3)
    with amanda.apply(tool):
        for _ in range(2):
            x.sin().sum().backward()
    names = ["forward", "SinBackward0", "forward", "AccumulateGrad"]
    nodes = ["SinBackward0", "SinBackward0", "AccumulateGrad", "AccumulateGrad"]
    assert seen == [(node, {"mask": [1], "name": name}) for node, name in zip(nodes, names, strict=True)]


def test_one_context_per_node_and_scope_and_one_analysis():
    tool, contexts = amanda.Tool(), []
    for _ in range(2):
        tool.add_inst_for_op(contexts.append, ops="sin", backward=True)
    x = leaf(3)
    scope = amanda.apply(tool)
    for _ in range(3):
        with scope:
            sine(x).backward()
    assert len(contexts) == 4
    assert contexts[0] is contexts[1]
    assert contexts[2] is contexts[3]
    assert contexts[0] is not contexts[2]


def sine(x):
    return x.sin().sum()


# ---- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_are_those_that_hooks_see():
    shown, hooked = {}, {}
    tool = amanda.Tool()

    def before(context):
        shown["outputs"] = [g.clone() for g in context.grad_outputs]
        assert not context.has_grad_inputs()

    def after(context):
        shown["late outputs"] = [g.clone() for g in context.grad_outputs]
        shown["inputs"] = [g.clone() for g in context.grad_inputs]

    tool.add_inst_for_op(before, ops="mul", backward=True)
    tool.add_inst_for_op(after, ops="mul", backward=True, require_outputs=True)
    a, b = leaf(3).exp(), leaf(3).exp()
    with amanda.apply(tool):
        y = a * b
        y.register_hook(lambda g: hooked.update(outputs=[g.clone()]))
        y.grad_fn.register_hook(lambda inputs, outputs: hooked.update(inputs=[g.clone() for g in inputs]))
        y.sin().sum().backward()
    for name, oracle in {"outputs": "outputs", "late outputs": "outputs", "inputs": "inputs"}.items():
        assert all(torch.equal(s, h) for s, h in zip(shown[name], hooked[oracle], strict=True)), name


def test_a_node_with_undefined_gradients_shows_none():
    tool = Asking(lambda c: [g if g is None else tuple(g.shape) for g in c.grad_outputs], ops="unbind")
    late = Asking(lambda c: [g if g is None else tuple(g.shape) for g in c.grad_inputs], "mul", require_outputs=True)
    with amanda.apply(tool, late):
        (leaf(3, 2).unbind(0)[1] * torch.ones(2)).sum().backward()
    assert tool.answers["UnbindBackward0"] == [[None, (2,), None]]
    assert late.answers["MulBackward0"] == [[(2,), None]]


def test_forward_contexts_have_none():
    def look(context):
        seen.append((context.has_grad_inputs(), context.is_backward()))
        for name in ("grad_outputs", "grad_inputs", "backward_op", "backward_op_id"):
            with pytest.raises(
                amanda.Error, match=rf"aten::sin has no {name} in a forward analysis; register an analysis"
            ):
                getattr(context, name)

    tool, seen = amanda.Tool(), []
    tool.add_inst_for_op(look, ops="sin")
    with amanda.apply(tool):
        leaf(3).sin()
    assert seen == [(False, False)]


# ---- forward tensors -------------------------------------------------------------------------------------------------


def test_parameters_are_the_very_objects():
    layer = nn.Linear(3, 3)
    tool = Asking(lambda c: (c.inputs[1] is layer.weight, c.inputs[2] is layer.bias, c.inputs[0] is None), ops="linear")
    with amanda.apply(tool):
        layer(torch.ones(2, 3)).sum().backward()
    assert len(tool.answers) == 3
    assert all(answer == (True, True, True) for answers in tool.answers.values() for answer in answers)


@pytest.mark.parametrize("kept", [True, False])
def test_tensors_are_shown_while_they_live(kept):
    """exp saves its result, not its input; and of its result, not the object."""
    tool = Asking(lambda c: (c.inputs[0], c.outputs[0]), ops="exp")
    with amanda.apply(tool):
        h = leaf(3) * 2
        y = h.exp()
        loss = y.sum()
        held = (h, y) if kept else (None, None)
        del h, y
        loss.backward()
    (shown,) = tool.answers["ExpBackward0"]
    assert all(tensor is other for tensor, other in zip(shown, held, strict=True))


def test_other_operands_are_shown_as_they_were():
    tool = Asking(lambda c: c.inputs, ops="leaky_relu")
    with amanda.apply(tool):
        F.leaky_relu(leaf(3), 0.25).sum().backward()
    assert tool.answers["LeakyReluBackward0"][0][1] == 0.25


def test_nodes_that_come_later_are_shown_their_operands_too():
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad_(False)
    tool = Asking(lambda c: [type(i).__name__ for i in c.inputs], ops="linear")
    with amanda.apply(tool):
        for run in range(3):
            layer.weight.requires_grad_(run == 2)
            layer(torch.ones(2, 3)).sum().backward()
    assert tool.answers["TBackward0"] == [["NoneType", "Parameter", "Parameter"]]


@pytest.mark.parametrize("ops", [None, "linear"])
@pytest.mark.parametrize("how", ["more dimensions", "autocast", "boxed"])
def test_nodes_of_other_shapes_are_shown_their_own_operands(how, ops):
    """A place that has been analysed for one shape makes other nodes for another."""
    layer = nn.Linear(3, 3)
    seen = {}
    tool = Asking(lambda c: seen.setdefault(c.backward_op.__name__, [*c.inputs[1:3], *c.outputs]), ops=ops)
    if how == "boxed":  # an edit makes it so
        tool.add_inst_for_op(lambda c: c.insert_before_op(lambda x: x.clone(), [0]), ops="linear")
    with amanda.apply(tool):
        for run in range(4):
            if run == 3:
                seen.clear()
            x = torch.ones(2, 3) if run < 3 or how == "autocast" else torch.ones(4, 2, 3)
            with torch.autocast("cpu", enabled=run == 3 and how == "autocast"):
                y = layer(x)
            y.sum().backward()
            layer.zero_grad()
    new = seen["ToCopyBackward0" if how == "autocast" else "ViewBackward0"]
    assert new[0] is layer.weight
    assert new[1] is layer.bias
    assert new[2].shape == y.shape


def test_a_context_keeps_no_tensor_alive():
    tool = Asking(lambda c: len(c.inputs) + len(c.grad_outputs))
    x = leaf(3)
    with amanda.apply(tool):
        h = x * 2
        alive = weakref.ref(h)
        h.sin().sum().backward()
        del h
        gc.collect()
        assert alive() is None


def test_weights_may_be_swapped_while_a_graph_lives():
    layer = nn.Linear(3, 3)
    other = nn.Linear(3, 3)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with amanda.apply(Watcher()):
            layer(torch.ones(2, 3)).sum().backward()
            layer.to(torch.float64)
            layer.float().load_state_dict(other.state_dict(), assign=True)
            layer(torch.ones(2, 3)).sum().backward()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert torch.equal(layer.weight, other.weight)


# ---- after the analysis ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inputs", "grad_outputs"])
def test_after_the_analysis_operands_are_gone(name):
    tool = Watcher(ops="sin")
    with amanda.apply(tool):
        leaf(3).sin().sum().backward()
        with pytest.raises(amanda.Error, match="analysis"):
            getattr(tool.contexts[0], name)
        with pytest.raises(amanda.Error, match="analysis"):
            tool.contexts[0].insert_before_backward_op(print)
        assert tool.contexts[0].backward_op.__name__ == "SinBackward0"
        assert tool.contexts[0].op.__name__ == "sin"


def test_analysis_runs_each_time_without_a_cache():
    tool = Asking(lambda c: None, ops="sin")
    with amanda.apply(tool), amanda.cache_disabled():
        for _ in range(3):
            leaf(3).sin().sum().backward()
    assert tool.runs == 6
