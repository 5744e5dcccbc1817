"""Filters: which modules a routine asks for, and the warning about filters that matched nothing."""

import contextlib
import inspect
import re
import threading
import warnings
from pathlib import Path

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.core import unmatched

X = torch.tensor([-1.0, 2.0])


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(2, 2)
        self.output = torch.nn.ModuleDict({"dense": torch.nn.Linear(2, 2)})

    def forward(self, x):
        return torch.relu(self.output["dense"](self.query(x)))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.mlp(self.attention(x)) + x


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(*(Layer() for _ in range(11)))

    def forward(self, x):
        return torch.sin(self.encoder(x))


MODEL = Model()


def seen(modules, program=lambda: MODEL(X), **asked):
    """(module path, operator) of all that such a routine analyzes."""
    found = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda c: found.append((c.module_path, c.op.__name__)), modules=modules, **asked)
    with amanda.apply(tool):
        program()
    return found


def warned(recorded):
    assert all(one.category is amanda.UnmatchedFilterWarning for one in recorded)
    return [str(one.message) for one in recorded]


@contextlib.contextmanager
def warns(*texts):
    """The body warns of unmatched filters in exactly these words."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield
    assert warned(recorded) == list(texts)


# ---- modules= --------------------------------------------------------------------------------------------------------


def test_a_path_stands_for_the_module_and_all_inside_it():
    inside = [("encoder.1.attention.query", "linear"), ("encoder.1.attention.output.dense", "linear")]
    assert seen("encoder.1.attention") == [*inside, ("encoder.1.attention", "relu")]
    assert seen("encoder.1.attention", ops="linear") == inside
    assert [path for path, _ in seen("encoder.1", ops="add")] == ["encoder.1"]  # not encoder.10


@pytest.mark.parametrize(
    ("modules", "places"),
    [
        ("encoder.*.attention", 22),
        ("*.attention", 22),
        ("encoder.?.attention.query", 10),
        ("encoder.[12]", 6),
        (["encoder.0.mlp", "encoder.1.mlp"], 2),
        (iter(["encoder.0.mlp", "encoder.*.mlp"]), 11),
        ("encoder", 33),
        ("*", 33),
    ],
)
def test_globs_match_paths_of_any_depth(modules, places):
    assert len(seen(modules, ops="linear")) == places


def test_star_also_means_operators_outside_modules():
    def program():
        torch.relu(MODEL(X))

    assert seen("*", program, ops=["relu", "sin"])[-2:] == [("", "sin"), ("", "relu")]
    assert ("", "relu") not in seen("encoder", program, ops=["relu", "sin"])


def test_what_is_elsewhere_is_analyzed_once_and_never_again():
    runs = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(
        lambda c: c.insert_before_op(lambda: runs.append(1), inputs=[]), ops="linear", modules="encoder.0.mlp"
    )
    with amanda.apply(tool) as scope:
        MODEL(X)
        known = scope.cache_info()
        assert (known.misses, known.currsize) == (1, 1)
        for _ in range(3):
            MODEL(X)
        again = scope.cache_info()
    assert len(runs) == 4
    assert (again.misses, again.currsize) == (1, 1)
    assert again.hits - known.hits == 3 * 33


@pytest.mark.parametrize("modules", ["encoder.3.attention", "encoder.3"])
def test_backward_operators_are_where_their_forward_operators_are(modules):
    found = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(
        lambda c: found.append((c.module_path, c.backward_op.__name__)), ops="relu", backward=True, modules=modules
    )
    with amanda.apply(tool):
        for _ in range(2):
            MODEL(X).sum().backward()
    assert found == [("encoder.3.attention", "ReluBackward0")]


def test_of_two_routines_each_sees_its_modules():
    found = []
    tool = amanda.Tool("tool")
    for name, backward in (("0", False), ("1", True), ("2", True)):
        tool.add_inst_for_op(
            lambda c, name=name: found.append((name, c.module_path)),
            ops="relu",
            modules=f"encoder.{name}",
            backward=backward,
        )
    with amanda.apply(tool):
        MODEL(X).sum().backward()
    assert found == [("0", "encoder.0.attention"), ("2", "encoder.2.attention"), ("1", "encoder.1.attention")]


def test_an_autograd_function_is_in_the_module_that_applies_it():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    class Doubling(torch.nn.Module):
        def forward(self, x):
            return Double.apply(x)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Doubling(), Doubling())
    found = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(
        lambda c: found.append((c.module_path, c.backward_op.__name__)), ops="Double", backward=True, modules="2"
    )
    with amanda.apply(tool):
        model(X).sum().backward()
    assert found == [("2", "DoubleBackward")]


def test_outputs_that_are_required_are_those_of_its_modules():
    found = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(
        lambda c: found.append(c.module_path), ops="linear", modules="encoder.4.mlp", require_outputs=True
    )
    with amanda.apply(tool):
        MODEL(X)
        MODEL(X)
    assert found == ["encoder.4.mlp"]


def test_an_on_demand_tool_follows_its_dependents_into_their_modules():
    mapped, found = [], []
    mapping, reader = amanda.Tool("mapping"), amanda.Tool("reader")
    mapping.add_inst_for_op(lambda c: mapped.append(c.module_path), ops=amanda.ON_DEMAND)
    reader.depends_on(mapping)
    reader.add_inst_for_op(lambda c: found.append(c.module_path), ops="linear", modules=["*.0.mlp", "*.7.mlp"])
    with amanda.apply(reader):
        MODEL(X)
    assert mapped == found == ["encoder.0.mlp", "encoder.7.mlp"]


def test_the_tool_prints_its_modules():
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(print, ops="linear", modules=["encoder.*.mlp", "head"])
    tool.add_inst_for_op(print, modules="head")
    assert repr(tool) == "<Tool 'tool': 2 forward analyses (linear in encoder.*.mlp, head; every operator in head)>"


GIVE = 'give one such as "encoder.layer.0", or "encoder.*.attention" with shell globs'
NO_PATHS = {
    "": "it is empty",
    ".attention": "there is no name before or after a dot",
    "encoder.": "there is no name before or after a dot",
    "encoder..attention": "there is no name before or after a dot",
    "encoder/attention": "a path is names joined by dots",
    "encoder, decoder": "a path is names joined by dots",
    "encoder.[01": "a '[' is not closed",
}


@pytest.mark.parametrize("path", NO_PATHS)
def test_what_is_no_module_path(path, says):
    for modules in (path, ["encoder", path]):
        with says(ValueError, f'[tool] modules="{path}" is no module path: {NO_PATHS[path]}; {GIVE}'):
            amanda.Tool().add_inst_for_op(print, modules=modules)


def test_no_path_at_all_would_match_nothing(says):
    with says(
        ValueError, "[tool] modules= has no pattern, and would match nothing; leave it out to ask in all modules"
    ):
        amanda.Tool().add_inst_for_op(print, modules=[])


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        (3, "3"),
        (MODEL, "an object of type Model"),
        (torch.nn.Sequential(torch.nn.ReLU()), "an object of type Sequential"),
        (torch.nn.Linear, repr(torch.nn.Linear)),
    ],
)
def test_modules_are_named_by_their_paths(thing, shown, says):
    text = (
        "[tool] prune.add_inst_for_op: modules= takes paths as in model.named_modules(), such as 'encoder.layer.0', "
        f"got {shown}"
    )
    for modules in (thing, ["encoder", thing]):
        with says(TypeError, text):
            amanda.Tool("prune").add_inst_for_op(print, modules=modules)


# ---- the warning -----------------------------------------------------------------------------------------------------


def asking(*asked, name="prune", **options):
    """A tool with one routine for each of `asked`."""
    tool = amanda.Tool(name)
    for ops in asked:
        tool.add_inst_for_op(lambda context: None, ops=ops, **options)
    return tool


HOW_TO = "to list what runs: amanda ls script.py, or amanda.points(model, *inputs)"
SAW = "operators of other types that the scope's tools saw, by places"
LINEAR = (
    "GPT-2's Conv1D is addmm, x @ weight is matmul, and nn.TransformerEncoderLayer in evaluation mode is "
    "_transformer_encoder_layer_fwd: ops=amanda.ops.linear_like asks for all of them"
)


def test_a_cpp_program_gets_the_same_hints():
    source = (Path(__file__).parents[3] / "src" / "unmatched_text.cpp").read_text()
    table = source.partition("kInstead[] = {")[2].partition("};")[0]
    hints = {
        name: "".join(re.findall(r'"(.*?)"', rest)) for name, rest in re.findall(r'\{"(\w+)",(.*?)\}', table, re.DOTALL)
    }
    assert hints.keys() == unmatched._INSTEAD.keys() - {"FusedBatchNormV3"}  # no C++ program has TensorFlow's operators
    linear = hints.pop("linear")
    assert linear.endswith("amanda::pytorch::linear_like() asks for all of them")
    assert hints == {name: unmatched._INSTEAD[name] for name in hints}
    listed = source.partition("kInPlace[] = {")[2].partition("};")[0]
    assert [f"{name}_" for name in re.findall(r'"(\w+)"', listed)] == [
        name for name in amanda.ops.activation if name[-1] == "_"
    ]


def test_the_group_of_linear_layers_is_the_same_in_cpp():
    header = (Path(__file__).parents[3] / "drivers/torch/include/amanda/torch.h").read_text()
    names = re.findall(r'"(\w+)"', header.partition("linear_like() {")[2].partition("}")[0])
    assert names == [*amanda.ops.linear_like]


def nothing(filters, tool="prune", ran=HOW_TO, more=""):
    return f"[scope] {filters} of tool '{tool}' matched nothing that ran; {ran}{more}"


@pytest.mark.parametrize("recording", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_a_pattern_that_matched_nothing(recording):
    with warns(nothing("ops='linear'", more=f"; {LINEAR}")), recording(), amanda.apply(asking("linear")):
        torch.addmm(X, torch.eye(2), torch.eye(2))


def test_it_points_at_the_with_statement():
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        line = inspect.currentframe().f_lineno + 1
        with amanda.apply(asking("linear")):
            torch.relu(X)

        @amanda.apply(asking("linear"))
        def program():
            torch.relu(X)

        program()
    assert [(one.filename, one.lineno) for one in recorded] == [(__file__, line), (__file__, line + 7)]


def test_it_lists_what_ran_where_the_scope_counts():
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        with amanda.apply(asking("linear"), coverage=True):
            for _ in range(3):
                torch.addmm(X, torch.eye(2), torch.eye(2))
            torch.relu(X)
    (text,) = warned(recorded)
    assert text.startswith(
        "[scope] ops='linear' of tool 'prune' matched nothing that ran; what ran, by calls: addmm 3, relu 1, "
    )
    assert text.endswith(f" more; {LINEAR}")


def test_it_lists_what_other_tools_saw():
    ran = f"{SAW}: relu 2, add 1, cos 1, exp 1, log 1 and 1 more"
    with (
        warns(nothing("ops='linear'", ran=ran, more=f"; {LINEAR}")),
        amanda.apply(asking("linear"), asking(None, name="other")),
    ):
        (torch.relu(X) + torch.relu(X)).exp().cos().log().sin()


def test_a_pattern_that_matched():
    with warns(), amanda.apply(asking(["linear", "conv*"], "relu*", None)):
        torch.relu_(F.linear(X, torch.eye(2)))


def test_the_routines_of_a_tool_are_one_warning():
    tool = asking("aten::cos", "exp", ["sin", "tan*"])
    with warns(nothing("ops=['aten::cos', 'sin', 'tan*']", ran=f"{SAW}: exp 1")), amanda.apply(tool):
        torch.exp(X)


def test_a_tool_without_any_work_is_one_warning():
    filters = "ops=['cosh', 'sin*', 'tan', 'exp', 'log', and 1 more]"
    with warns(nothing(filters)), amanda.apply(asking("cosh", ["sin*", "tan", "exp", "log"], ["log", "sqrt"])):
        torch.square(X)


def test_optional_routines_are_missed_only_if_the_tool_has_no_work():
    tool = asking("exp")
    tool.add_inst_for_op(print, ops="cosh", optional=True)
    with warns(), amanda.apply(tool):
        torch.exp(X)
    tool = asking("exp")
    tool.add_inst_for_op(print, ops="cosh", optional=True)
    with warns(nothing("ops=['exp', 'cosh']")), amanda.apply(tool):
        torch.square(X)


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("relu", "; in place it is relu_"),
        ("layer_norm", "; normalization may be rms_norm, or be written with pow, mean and rsqrt"),
    ],
)
def test_what_may_run_instead(asked, hint):
    with warns(nothing(f"ops={asked!r}", more=hint)), amanda.apply(asking(asked)):
        torch.square(X)


def test_an_operator_inside_another_that_the_tool_sees():
    tool = asking("addmm", "linear")
    with warns(nothing("ops='addmm'", ran=f"{SAW}: linear 1")), amanda.apply(tool):
        F.linear(torch.eye(2), torch.eye(2), X)


def test_a_routine_of_backward_operators_is_met_by_the_forward_operator():
    scope = amanda.apply(asking("relu", backward=True))
    with warns(), scope:
        torch.relu(X)
    scope._end.detach()  # that no backward operator ran is another warning


def empty():
    pass


def off():
    with amanda.disabled():
        torch.square(X)


def elsewhere():
    thread = threading.Thread(target=lambda: torch.square(X))
    thread.start()
    thread.join()


def bookkeeping():
    with torch.profiler.record_function("mine"):
        pass


@pytest.mark.parametrize("program", [empty, off, bookkeeping])
def test_no_operator_ran_that_a_filter_could_match(program):
    with warns(), amanda.apply(asking("linear")):
        program()


def test_operators_ran_on_another_thread_alone():
    text = (
        "[scope] no operator ran on this thread while the scope was entered, and aten::square ran on another thread; a "
        "scope covers the thread that enters it: enter it in the function that the other thread runs"
    )
    with warns(text), amanda.apply(asking("linear")):
        elsewhere()


def test_a_backward_pass_alone_calls_no_operator_of_the_program():
    y, gradient = torch.relu(torch.ones(2, requires_grad=True)), torch.ones(2)
    with warns(), amanda.apply(asking("linear")):
        y.backward(gradient)


def test_switched_on_again_it_is_awaited_again():
    with warns(nothing("ops='cos'")), amanda.apply(asking("cos")):
        with amanda.disabled():
            torch.square(X)
        torch.square(X)


def test_a_scope_that_an_exception_leaves():
    tool = asking("cos")
    with warns(), pytest.raises(IndexError), amanda.apply(tool):
        torch.square(X)[2]
    with warns(nothing("ops='cos'")), amanda.apply(tool):
        torch.square(X)


def test_once_for_each_routine():
    tool = asking("cos")
    scope = amanda.apply(tool)
    with warns(nothing("ops='cos'"), nothing("ops='sin'")):
        for _ in range(2):
            with scope:
                torch.square(X)
            with amanda.apply(tool):
                torch.square(X)
        tool.add_inst_for_op(print, ops="sin")
        for _ in range(2):
            with scope:
                torch.square(X)


def test_what_matched_when_the_scope_was_entered_before_has_matched():
    scope = amanda.apply(asking("cos"))
    with warns():
        with scope:
            torch.cos(X)
        with scope:
            torch.square(X)


def test_a_tool_in_two_scopes_is_missed_when_the_last_is_left():
    tool = asking("cos")
    with warns(), amanda.apply(tool):
        with amanda.apply(tool):
            torch.square(X)
        torch.cos(X)
    outer, inner = amanda.apply(tool), amanda.apply(tool)
    with warns(), contextlib.ExitStack() as inside:
        with outer:
            inside.enter_context(inner)
            torch.cos(X)
        torch.square(X)


def test_a_tool_that_was_stopped_is_not_missed(log):
    tool = amanda.Tool("prune")
    tool.add_inst_for_op(lambda context: 1 / 0, ops="square")
    tool.add_inst_for_op(print, ops="cos")
    with warns(), amanda.apply(tool, on_error="disable"):
        torch.square(X)
    assert len(log()) == 1


def test_warnings_that_are_errors_leave_the_scope_first():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(amanda.UnmatchedFilterWarning, match="ops='cos'"), amanda.apply(asking("cos")) as scope:
            torch.square(X)
    assert "not entered" in repr(scope)


def test_modules_that_are_elsewhere():
    near = "in 33 other modules; near it: 'encoder.9.attention', 'encoder.8.attention', 'encoder.7.attention'"
    asked = {
        "encoder.*.attn": ("linear", "the operators of ops='linear' ran " + near),
        "quux": ("sin", "the operators of ops='sin' ran outside modules only"),
    }
    for modules, (ops, where) in asked.items():
        with (
            warns(f"[scope] modules={modules!r} of tool 'prune' matched nothing: {where}"),
            amanda.apply(asking(ops, modules=modules)),
        ):
            MODEL(X)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with (
        warns("[scope] modules=['encoder', 'head'] of tool 'prune' matched nothing: operators ran in '0', '1'"),
        amanda.apply(asking(None, modules=["encoder", "head"])),
    ):
        model(X)


def test_modules_whose_operators_did_not_run():
    with warns(nothing("ops='cosh', modules='encoder'")), amanda.apply(asking("cosh", modules="encoder")):
        MODEL(X)


def test_a_narrowed_tool_sees_what_it_asks_for_there():
    seen = []
    tool = amanda.Tool("look")
    tool.add_inst_for_op(lambda context: seen.append((context.module_path, context.op.__name__)))
    tool.narrow(ops=["linear", "softmax"], modules=["0", "1.*"])
    tool.narrow(modules="*.self_attn")  # both hold
    tool.add_inst_for_op(lambda context: seen.append("later"), ops="softmax")
    layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sequential(layer))
    with amanda.apply(tool):
        model(torch.randn(3, 5, 4))
    # Without the restriction, one operator of the layer would hide those inside it.
    assert seen == [("1.0.self_attn", "linear"), ("1.0.self_attn", "softmax"), "later", ("1.0.self_attn", "linear")]


def test_narrow_refuses():
    tool = amanda.Tool("look")
    with pytest.raises(TypeError, match=r"\[tool\] look.narrow: ops= takes operator names, got 3"):
        tool.narrow(ops=[3])
    with pytest.raises(TypeError, match=r"\[tool\] look.narrow: modules= takes paths as in model.named_modules\(\)"):
        tool.narrow(modules=3)
    with pytest.raises(ValueError, match=r"\[tool\] look.narrow: ops= takes operator names, got"):
        tool.narrow(ops=amanda.ON_DEMAND)
    scope = amanda.apply(tool)
    with pytest.raises(
        amanda.Error, match=r"look\.narrow: a scope was made with this tool; narrow it before amanda\.apply"
    ):
        tool.narrow(ops="linear")
    with scope:
        pass
