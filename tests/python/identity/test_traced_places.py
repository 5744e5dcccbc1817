"""Operators of torch.fx graphs have the modules and the lines of the program that was traced: those of its own run."""

from __future__ import annotations

import collections
import io
import traceback

import amanda
import export_zoo
import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)) + x) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return F.softmax(self.head(self.blocks[0](x)), -1)  # the first block, again


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


PRODUCTS = {"linear", "conv2d", "matmul", "scaled_dot_product_attention", "layer_norm", "batch_norm", "addmm"}


def innermost_forward():
    """The line of the innermost method of a module that runs: what torch.export notes of a stack that it traces."""
    for frame, line in traceback.walk_stack(None):
        if frame.f_code.co_name == "forward" and "/torch/" not in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename}:{line}"
    return ""


class Looks(amanda.Tool):
    """Counts runs by operator, module and line."""

    def __init__(self):
        super().__init__()
        self.ran, self.ids, self.forwards = collections.Counter(), [], set()
        self.add_inst_for_op(self.analyze)
        self.add_inst_for_op(self.analyze, backward=True)

    def analyze(self, context):
        key = context.op.__name__, context.module_path, context.source
        self.forwards.add((context.module_path, innermost_forward()))
        self.ids.append(context.op_id)
        if context.is_backward():
            context.insert_before_backward_op(lambda: self.ran.update([key]), grad_outputs=[])
        else:
            context.insert_before_op(lambda: self.ran.update([key]), inputs=[])


def ran(program, *args, **kwargs):
    looks = Looks()
    with amanda.apply(looks):
        program(*args, **kwargs)
    return looks.ran


def loaded(model, args=(), kwargs=None, **options):
    """The model that a `.pt2` file has."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, args, kwargs, **options), file)
    file.seek(0)
    return torch.export.load(file).module()


@pytest.mark.parametrize("strict", [False, True])
def test_a_file_has_the_rows_of_its_model(strict):
    net, x = Net(), torch.randn(2, 4)
    batches = ({0: torch.export.Dim("batch")},)
    assert ran(loaded(net, (x,), strict=strict, dynamic_shapes=batches), x) == ran(net, x)


def helper(x):
    return x.sin()


class Helped(nn.Module):
    def forward(self, x):
        return helper(x) * 2


def test_a_strict_export_notes_lines_of_functions_that_a_forward_calls_too():
    x = torch.ones(2)
    eager = ran(Helped(), x)
    assert ran(loaded(Helped(), (x,), strict=True), x) == eager
    lines = {key[0]: key[2].rpartition(":")[2] for key in ran(loaded(Helped(), (x,)), x)}
    assert lines["sin"] == lines["mul"] == next(key[2].rpartition(":")[2] for key in eager if key[0] == "mul")


def test_a_graph_inside_a_graph_has_the_names_of_the_whole_model():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            with torch.no_grad():
                x = self.block(x)
            return x.tanh()

    x = torch.randn(2, 4)
    net = Partly()
    model = loaded(net, (x,))
    assert any("submod" in name for name, _ in model.named_modules())  # the block without gradients
    assert ran(model, x) == ran(net, x)


def test_so_do_backward_operators():
    net, x = Net(), torch.randn(2, 4)
    eager = ran(lambda: net(x).sum().backward())
    model = loaded(net, (x,))
    of_file = ran(lambda: model(x).sum().backward())
    assert {key for key in of_file if key[1]} == {key for key in eager if key[1]}


def test_names_are_those_in_the_model_around():
    x = torch.randn(2, 4)
    net = Net()
    eager = ran(Around(net), x)
    assert {key[1] for key in eager} == {"inner", "inner.head"} | {
        f"inner.blocks.{i}{part}" for i in (0, 1) for part in ("", ".linear", ".norm")
    }
    assert ran(Around(loaded(net, (x,))), x) == eager


def test_graphs_of_tracers_have_lines_and_modules_if_they_noted_them():
    net, x = Net(), torch.randn(2, 4)
    tracer = fx.Tracer()
    tracer.record_stack_traces = True
    graph = fx.GraphModule(net, tracer.trace(net))
    assert {key[1] for key in ran(graph, x)} == {key[1] for key in ran(net, x)}
    lines = {key[2] for key in ran(net, x) if key[0] in ("relu", "add", "mul", "softmax")}
    assert lines <= {key[2] for key in ran(graph, x)}


def test_a_graph_that_was_changed_has_the_places_of_its_nodes():
    net, x = Net(), torch.randn(2, 4)
    model = loaded(net, (x,))
    before = ran(model, x)
    (head,) = [node for node in model.graph.nodes if node.name == "softmax"]
    with model.graph.inserting_before(head):  # of nobody's: it has no notes
        head.replace_input_with(head.args[0], model.graph.call_function(torch.ops.aten.tanh.default, (head.args[0],)))
    model.recompile()
    after = ran(model, x)
    (added,) = (after - before).elements()
    assert added[0] == "tanh"
    assert added[1] == ""
    assert added[2].startswith("<eval_with_key>")
    assert not before - after


def test_notes_that_say_nothing_leave_the_graphs_own_place():
    def doubled(x):
        return x.exp() * 2

    graph = fx.symbolic_trace(doubled)
    x = torch.ones(2)
    assert all(key[2].startswith("<eval_with_key>") for key in ran(graph, x))
    for node, notes in zip(
        list(graph.graph.nodes)[1:3],
        [
            {"nn_module_stack": {}, "stack_trace": ""},
            {"nn_module_stack": {"a": ("L['self'].b", None)}, "stack_trace": 3},
        ],
        strict=True,
    ):
        node.meta.update(notes)
    graph.recompile()
    assert {key[1] for key in ran(graph, x)} == {""}
    assert all(key[2].startswith("<eval_with_key>") for key in ran(graph, x))


def test_ids_do_not_depend_on_how_many_graphs_there_were():
    def ids():
        looks = Looks()
        model = loaded(Net(), (torch.randn(2, 4),))
        with amanda.apply(looks):
            model(torch.randn(2, 4))
        assert len(set(looks.ids)) == len(looks.ids)
        return looks.ids

    assert len(ids()) == len(ids())


def test_a_compiled_file_has_the_rows_of_its_model():
    net, x = Net(), torch.randn(2, 4)
    model = loaded(net, (x,))
    compiled = torch.compile(model, backend="aot_eager")
    looks = Looks()
    with amanda.apply(looks, compiled="graph"):
        compiled(x)
    assert set(looks.ran) == set(ran(net, x))


@pytest.mark.parametrize("name", export_zoo.named("bert", "llama", "swin", "mobilenet_v2"))
def test_architectures_of_transformers(name):
    model, inputs = export_zoo.made(name)
    looks = Looks()
    with amanda.apply(looks):
        model(**inputs)
    of_file = ran(loaded(model, (), inputs), **inputs)
    common = {key[:2] for key in looks.ran}  # while it is exported, a model makes masks that it does without otherwise
    assert {(module, line) for op, module, line in of_file if (op, module) in common} <= looks.forwards
    modules = [{module for op, module, _ in runs if op in PRODUCTS} for runs in (looks.ran, of_file)]
    assert modules[0] == modules[1] != set()
