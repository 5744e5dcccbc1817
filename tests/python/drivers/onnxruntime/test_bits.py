"""A session computes in a scope what it computes alone, to the last bit."""

import amanda
import export_zoo
import pytest
from export_models import exported
from sessions import REGIMES, Every, bits, flat, session

LEVELS = "DISABLED", *(pytest.param(name, marks=pytest.mark.long) for name in ("BASIC", "EXTENDED")), "ALL"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return {}, tmp_path_factory.mktemp("models")


@pytest.fixture
def file(request, files):
    """Of an architecture, and its model and arguments: written once for all tests."""
    made, folder = files
    name = request.param
    if name not in made:
        network, arguments = export_zoo.made(name)
        path = exported(network, (), folder / f"{name}.onnx", kwargs=arguments)
        made[name] = path, network, arguments
    return made[name]


def feeds_of(opened, arguments):
    return {each.name: arguments[each.name].numpy() for each in opened.get_inputs()}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("file", export_zoo.named("bert", "mobilenet_v2"), indirect=True)
def test_a_network_of_transformers_is_the_same(file, level):
    path, _, arguments = file
    opened = session(path, level, intra_op_num_threads=1)
    feeds = feeds_of(opened, arguments)
    alone = bits(opened.run(None, feeds))
    for regime in REGIMES:
        tool = Every(regime)
        with amanda.apply(tool):
            assert bits(opened.run(None, feeds)) == alone, regime
        assert tool.values >= len(tool.places) > 0
    assert bits(opened.run(None, feeds)) == alone


@pytest.mark.parametrize("file", export_zoo.named("bert", "mobilenet_v2"), indirect=True)
def test_operators_have_the_modules_and_lines_of_the_program(file):
    """Also those of a graph in which operators were fused, of which ONNX Runtime keeps no metadata."""
    path, network, arguments = file
    opened, tool = session(path), Every()
    with amanda.apply(tool):
        opened.run(None, feeds_of(opened, arguments))
    paths = {name for name, _ in network.named_modules()}
    unknown = {made: place for made, (place, _) in tool.places.items() if place not in paths}
    assert unknown == {}
    sourced = [source for _, source in tool.places.values() if source]
    assert len(sourced) > 0.9 * len(tool.places)
    assert all("transformers" in source or "torch" in source for source in sourced)


def test_results_are_the_programs_own():
    """It may write to them, and to its inputs; a routine may not."""
    from sessions import X

    opened, kept = session(), []
    tool = amanda.Tool("keeps")
    tool.add_inst_for_op(lambda context: context.insert_after_op(lambda y: kept.append(y)))
    feeds = {"x": X.copy()}
    with amanda.apply(tool):
        (result,) = opened.run(None, feeds)
    result += 1
    feeds["x"] += 1
    assert kept
    for value in flat(kept):
        with pytest.raises(ValueError, match="read-only"):
            value += 1
