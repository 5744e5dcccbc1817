"""What fails in compiled functions, and what becomes of the program then."""

import gc
import sys
import weakref

import amanda
import pytest
import torch
from compiled_tools import Counting, Doubled, Seen

X = torch.tensor([[-1.0, 2.0, 3.0]])


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch):
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function(x):
    return torch.relu(x) + 1


class Mine(Exception):
    pass


def failing(*_):
    raise Mine("of the tool")


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("suppress", [False, True])
def test_an_analysis_that_raises(fullgraph, suppress):
    compiled, tool = torch.compile(function, backend="aot_eager", fullgraph=fullgraph), amanda.Tool()
    tool.add_inst_for_op(failing, ops="relu")
    with torch._dynamo.config.patch(suppress_errors=suppress):
        for _ in range(2):
            with pytest.raises(Mine, match="of the tool") as raised, amanda.apply(tool, compiled="graph"):
                compiled(X)
            assert raised.value.__context__ is None
    assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]
    with amanda.apply(Doubled(), compiled="graph"):
        assert compiled(X).tolist() == [[1.0, 5.0, 7.0]]


def test_a_routine_that_raises():
    compiled, tool = torch.compile(function, backend="aot_eager"), amanda.Tool()
    tool.add_inst_for_op(lambda context: context.insert_after_op(failing), ops="relu")
    with pytest.raises(Mine, match="of the tool"), amanda.apply(tool, compiled="graph"):
        compiled(X)
    assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]


def test_a_build_without_the_driver(forked_python):
    printed = forked_python("""
        import sys
        sys.modules["amanda._torch_compile"] = None
        import amanda
        import torch
        x, compiled = torch.tensor([-1.0, 2.0]), torch.compile(lambda x: torch.relu(x) + 1, backend="aot_eager")
        for policy in ("graph", "opaque", "eager"):
            try:
                with amanda.apply(amanda.Tool(), compiled=policy):
                    print(compiled(x).tolist())
            except amanda.Error as error:
                print(error)
        print(compiled(x).tolist())
    """)
    refused, *results = printed.splitlines()
    assert refused == (
        "[compile] this build of amanda has no driver for compiled functions; build it in a checkout. "
        'Until then, compiled="eager" runs compiled functions eagerly, under the tools, and '
        'compiled="opaque" as they are, unseen'
    )
    assert results == ["[1.0, 3.0]"] * 3


def test_a_torch_without_a_method_that_is_replaced(fresh_python):
    """It is found out when the driver is loaded, and not in the middle of a compilation."""
    printed = fresh_python("""
        import amanda
        import torch
        from torch._dynamo.variables.user_defined import UserDefinedClassVariable
        del UserDefinedClassVariable._call_cross_entropy_loss
        x, compiled = torch.tensor([-1.0, 2.0]), torch.compile(lambda x: torch.relu(x) + 1, backend="aot_eager")
        try:
            with amanda.apply(amanda.Tool(), compiled="graph"):
                compiled(x)
        except amanda.Error as error:
            print(error)
        print(compiled(x).tolist())
    """)
    refused, result = printed.splitlines()
    assert refused == (
        f"[compile] torch {torch.__version__} has no "
        "torch._dynamo.variables.user_defined.UserDefinedClassVariable._call_cross_entropy_loss, which this version of "
        "amanda relies on to instrument compiled functions; install torch 2.11, 2.12, 2.13 or 2.14, or a newer amanda. "
        'Until then, compiled="eager" runs compiled functions eagerly, under the tools, and compiled="opaque" as they are, '
        "unseen"
    )
    assert result == "[1.0, 3.0]"


def test_a_torch_that_does_not_fit(monkeypatch):
    from amanda.drivers.torch_compile.front import entry as front

    monkeypatch.setattr(front, "_refusals", [])
    monkeypatch.setattr(front, "_callbacks", front._callbacks.__wrapped__)
    monkeypatch.setitem(sys.modules, "amanda.drivers.torch_compile.front.callbacks", None)
    monkeypatch.delattr("amanda.drivers.torch_compile.front.callbacks", raising=False)
    compiled = torch.compile(function, backend="aot_eager")
    with pytest.raises(amanda.Error, match=r'halted; .*compiled="eager"'), amanda.apply(Doubled(), compiled="graph"):
        compiled(X)
    assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]


def refusing(gm, example_inputs):
    """A backend that cannot compile what has other nodes than the program."""
    if any(str(node.target).startswith("amanda") for node in gm.graph.nodes):
        raise NotImplementedError("no such node\nand more")
    return gm.forward


def test_a_backend_that_cannot_compile_taps(caplog, monkeypatch):
    monkeypatch.setattr("amanda.drivers.torch_compile.front.uninstrumented._said", {})
    compiled, seen = torch.compile(function, backend=refusing), Seen(ops="relu")
    scope = amanda.apply(seen, compiled="graph", coverage=True)
    for _ in range(2):
        with scope:
            assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]
    assert seen.ran == []
    (message,) = (record.getMessage() for record in caplog.records if record.name == "amanda")
    place = f'File "{__file__}", line {function.__code__.co_firstlineno + 1}, in function'
    assert message == (
        f"[compile] {place}, runs without tools: the backend refusing could not compile it with taps: "
        'NotImplementedError: no such node. With compiled="eager", tools see it (said once for each function)'
    )
    assert scope.coverage().row("aten::relu").skipped == {"compiled": 1}


def test_a_backend_that_cannot_compile_the_program(caplog):
    def broken(gm, example_inputs):
        raise NotImplementedError("anything")

    compiled = torch.compile(function, backend=broken)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as vanilla:
        compiled(X)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as ours, amanda.apply(Seen(), compiled="graph"):
        compiled(X)
    assert str(vanilla.value.inner_exception) == str(ours.value.inner_exception) == "anything"


def test_coverage_has_every_operator():
    compiled, seen = torch.compile(lambda x: (torch.relu(x) * 2).sum(), backend="aot_eager"), Seen(ops="relu")
    x = X.clone().requires_grad_()
    scope = amanda.apply(seen, compiled="graph", coverage=True)
    with scope:
        compiled(x).backward()
    report = scope.coverage()
    assert report.row("aten::relu").seen == 1
    assert report.row("aten::mul").skipped == {"unasked": 1, "backward": 1}
    assert report.row("autograd::MulBackward0").skipped == {"unasked": 1}
    assert not {"opaque", "lost"} & set(report.total("forward").skipped)


def keeps(context):
    context.insert_before_backward_op(lambda *gradients: kept.append(gradients))
    context.insert_after_backward_op(lambda *gradients: kept.append(gradients))


def edits(context):
    context.insert_before_backward_op(lambda *gradients: tuple(gradient + 0 for gradient in gradients))


def replaces(context):
    context.replace_op(context.op)


kept = []


@pytest.mark.parametrize("analyze", [keeps, edits, replaces])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_copies_for_tools_are_no_operators_of_the_program(analyze, backend):
    tool, model = amanda.Tool(), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    compiled = torch.compile(model, backend=backend)
    tool.add_inst_for_op(analyze, ops=["linear", "relu"], backward=analyze is not replaces)
    with amanda.apply(tool, compiled="graph", coverage=True) as scope:
        for _ in range(2):
            compiled(X).pow(2).sum().backward()
    kept.clear()
    report = scope.coverage()
    assert not {"opaque", "lost", "callback"} & {*report.total("forward").skipped, *report.total("backward").skipped}
    assert tool.evidence().is_complete


def test_evidence_has_what_is_hidden_once():
    compiled, seen = torch.compile(torch.vmap(lambda x: x.sin().sum()), backend="aot_eager"), Seen()
    with amanda.apply(seen, compiled="graph", coverage=True):
        compiled(torch.ones(2, 3))
    assert [(one.reason, one.count) for one in seen.evidence().unseen] == [("hidden", 2)]


def test_taps_that_cannot_be_put_into_a_graph_are_evidence(monkeypatch):
    def fail(*args):
        raise NotImplementedError("not into this")

    monkeypatch.setattr("amanda.drivers.torch_compile.front.compiled_function.lower", fail)
    compiled, seen = torch.compile(function, backend="aot_eager"), Seen()
    with amanda.apply(seen, compiled="graph"):
        assert compiled(X).tolist() == [[1.0, 3.0, 4.0]]
    assert [one.reason for one in seen.evidence().unseen] == ["refused"]


def test_a_model_is_not_kept_alive():
    def run(model):
        compiled = torch.compile(model, backend="aot_eager")
        with amanda.apply(Seen(), compiled="graph"):
            compiled(X).sum().backward()

    model = torch.nn.Linear(3, 2)
    run(model)
    alive = weakref.ref(model.weight)
    del model
    gc.collect()
    assert alive() is None


def test_the_backend_s_copies_leave_the_program_s_own_graph_as_it_is():
    class Destroying(Counting):
        def __call__(self, gm, example_inputs):
            compiled = super().__call__(gm, example_inputs)
            for node in reversed(list(gm.graph.nodes)):
                gm.graph.erase_node(node)
            return compiled

    compiled = torch.compile(function, backend=Destroying())
    for tool in (Seen(), Doubled(), Seen(), Doubled()):
        with amanda.apply(tool, compiled="graph"):
            result = compiled(X)
    assert result.tolist() == [[1.0, 5.0, 7.0]]
