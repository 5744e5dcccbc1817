"""MappingTool: rules by namespace, run before the tools that depend on it and for nothing else."""

import amanda
import pytest
import torch
from amanda.tools.mapping import MappingTool
from tutorial_mapping import mapping_tool, torch_op_name_rule


class Reader(amanda.Tool):
    """Lists what `key` holds at the analysis of each operator in `ops`."""

    def __init__(self, mapping_tool, key, **asked):
        super().__init__()
        self.depends_on(mapping_tool)
        self.key, self.seen = key, []
        self.add_inst_for_op(self.analyze, **asked)

    def analyze(self, context):
        self.seen.append(context.get(self.key))


def test_the_tutorials_rules_name_the_operators_of_its_cnn():
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(channels, 4, 3) for channels in (3, 4)),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 2),
    )
    reader = Reader(mapping_tool, "op_name")
    with amanda.apply(reader):
        model(torch.rand(1, 3, 8, 8))
    assert reader.seen == ["rand", "conv2d", "conv2d", "relu", "flatten", "linear"]


def test_a_forward_operator_has_no_backward_name():
    reader = Reader(MappingTool([["pytorch", torch_op_name_rule]]), "backward_op_name", ops="relu")
    with amanda.apply(reader):
        torch.relu(torch.ones(1))
    assert reader.seen == [None]


@pytest.mark.parametrize(
    ("namespace", "matches"),
    [
        ("pytorch", True),
        ("pytorch/2.13", True),
        ("pytorch/2.13/eager", True),
        ("pytorch/2", False),
        ("pytorch/2.1", False),
        ("pytorch/2.13/eager/cpu", False),
        ("pytorch/eager", False),
        ("torch", False),
        ("eager", False),
        ("tensorflow", False),
    ],
)
def test_a_rule_is_for_every_path_below_its_namespace(namespace, matches):
    reader = Reader(MappingTool([[namespace, lambda context: context.update(mapped=True)]]), "mapped", ops="relu")
    with amanda.apply(reader):
        torch.relu(torch.ones(1))
    assert reader.seen == [True if matches else None]


def test_rules_run_in_the_order_they_were_added():
    def say(word):
        return lambda context: context.update(said=[*context.get("said", []), word])

    mapping_tool = MappingTool([["pytorch/2.13", say("first")], ("pytorch", say("second"))])
    mapping_tool.add_rule("pytorch/2.13/eager", say("third"))
    reader = Reader(mapping_tool, "said", ops="relu")
    with amanda.apply(reader):
        torch.relu(torch.ones(1))
    assert reader.seen == [["first", "second", "third"]]


def test_a_dependent_that_wants_outputs_finds_the_keys():
    reader = Reader(MappingTool([["pytorch", torch_op_name_rule]]), "op_name", ops="relu", require_outputs=True)
    with amanda.apply(reader):
        torch.relu(torch.ones(1))
    assert reader.seen == ["relu"]


def test_rules_run_once_for_each_operator_that_a_dependent_asks_for():
    mapped = []
    mapping_tool = MappingTool([["pytorch", lambda context: mapped.append(context.op.__name__)]])
    x = torch.ones(2)
    with amanda.apply(Reader(mapping_tool, "", ops=["relu", "ab?"])):
        for _ in range(3):
            torch.relu(x), torch.abs(x), torch.exp(x)
    assert mapped == ["relu", "abs"]


def test_several_dependents_share_one_mapping():
    mapped = []
    mapping_tool = MappingTool([["pytorch", lambda context: mapped.append(context.op.__name__)]])
    with amanda.apply(Reader(mapping_tool, "", ops="relu"), Reader(mapping_tool, "", ops=["relu", "abs"])):
        torch.relu(torch.ones(2)).abs()
    assert mapped == ["relu", "abs"]


def test_alone_it_does_nothing():
    mapped = []
    with amanda.apply(MappingTool([["pytorch", mapped.append]])):
        torch.relu(torch.ones(1))
    assert mapped == []


def test_a_rule_that_fails_is_reported_as_the_mapping_tools(placeless):
    def broken(context):
        raise LookupError("no name for this")

    with (
        amanda.apply(Reader(MappingTool([["pytorch", broken]]), "", ops="relu")),
        pytest.raises(LookupError, match="no name for this") as caught,
    ):
        torch.relu(torch.ones(1))
    assert list(map(placeless, caught.value.__notes__)) == ["[amanda] in tool 'MappingTool': analysis of aten::relu"]


NAMESPACE, EXAMPLES = "[mapping] a namespace is", '"pytorch" or "pytorch/2.13"'


@pytest.mark.parametrize(
    ("rules", "error", "text"),
    [
        (3, TypeError, "[mapping] rules= takes a list of [namespace, routine] pairs, got 3"),
        ("pytorch", TypeError, "[mapping] rules= takes a list of [namespace, routine] pairs, got 'pytorch'"),
        (["pytorch", print], TypeError, "[mapping] a rule is a pair, as in [\"pytorch\", routine]; got 'pytorch'"),
        ([["pytorch"]], TypeError, "[mapping] a rule is a pair, as in [\"pytorch\", routine]; got ['pytorch']"),
        ([["pytorch", None]], TypeError, '[mapping] the rule for "pytorch" needs a routine to call, got None'),
        ([[print, "pytorch"]], TypeError, f"{NAMESPACE} a string, as {EXAMPLES}; got <built-in function print>"),
        ([["", print]], ValueError, f'{NAMESPACE} a path, as {EXAMPLES}; got ""'),
        ([["pytorch/", print]], ValueError, f'{NAMESPACE} a path, as {EXAMPLES}; got "pytorch/"'),
    ],
)
def test_a_bad_rule_is_refused_with_what_would_work(rules, error, text):
    with pytest.raises(error) as caught:
        MappingTool(rules)
    assert str(caught.value) == text
