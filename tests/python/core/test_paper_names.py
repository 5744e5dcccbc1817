"""The names that the paper's programs use are those that this package uses."""

import amanda
import pytest
import torch
from amanda.core import paper_names

FORWARD = ["op", "op_id", "inputs", "outputs"]
BACKWARD = [*FORWARD, "backward_op", "backward_op_id", "grad_outputs", "grad_inputs"]


def seen(names, **options):
    """For each name what the paper's method returned in an analysis, and the property's value."""
    found = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(
        lambda c: found.extend((getattr(c, f"get_{name}")(), getattr(c, name)) for name in names),
        ops="mul",
        require_outputs=True,
        **options,
    )
    x = torch.ones(2, requires_grad=True)
    with amanda.apply(tool):
        (x * 2).sum().backward()
    assert len(found) >= len(names)
    return found


@pytest.mark.parametrize(("names", "options"), [(FORWARD, {}), (BACKWARD, {"backward": True})])
def test_a_method_of_the_paper_returns_what_the_property_does(names, options):
    for got, is_here in seen(names, **options):
        if isinstance(got, tuple):
            assert [type(each) for each in got] == [type(each) for each in is_here]
            assert all(torch.equal(a, b) for a, b in zip(got, is_here, strict=True) if isinstance(a, torch.Tensor))
        else:
            assert got == is_here


def test_the_table_has_all_methods_of_the_paper():
    methods = {name for name in vars(paper_names.PaperNames) if name.startswith("get_")}
    assert methods == {f"get_{name}" for name in BACKWARD}
    assert not [name for name in vars(amanda.OpContext) if name.startswith("get_")]
    for name in methods:
        method = getattr(amanda.OpContext, name)
        assert method.__name__ == name
        assert method.__doc__.startswith(f"As `{name.removeprefix('get_')}`")


def test_in_a_forward_analysis_there_is_no_backward_operator():
    found = []
    tool = amanda.Tool("tool")
    tool.add_inst_for_op(lambda c: found.append((c.get_backward_op(), c.get_backward_op_id())), ops="mul")
    with amanda.apply(tool):
        torch.ones(1) * 2
    assert found == [(None, None)]


def test_apply_is_also_where_the_paper_has_it():
    from amanda.tool import apply

    assert apply is amanda.tool.apply is amanda.apply
    with pytest.raises(AttributeError, match=r"module 'amanda\.tool' has no attribute 'aply'"):
        _ = amanda.tool.aply


def test_a_tool_has_no_namespace():
    class Mine(amanda.Tool):
        def __init__(self):
            super().__init__("mine", namespace="pytorch")

    with pytest.raises(TypeError, match=r"^\[tool\] Tool has no namespace= any more: it had no effect; leave it out$"):
        Mine()
    with pytest.raises(TypeError, match=r"Tool has no option nme=; did you mean name="):
        amanda.Tool(nme="tool")
