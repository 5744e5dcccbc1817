"""Names that have moved: the old ones are errors that have the new ones, and the new ones are there."""

import importlib
import pickle
import re

import amanda
import pytest
from amanda.core import moved

NAMES = [(old, new, name) for old, new, names in moved.NAMES for name in names]


@pytest.mark.parametrize(("old", "statement"), moved.MODULES.items())
def test_an_old_module_is_an_error_that_has_the_new_one(old, statement):
    text = f"^{re.escape(f'{old} moved: {statement}')}$"
    with pytest.raises(ImportError, match=text):
        importlib.import_module(old)
    package, _, name = old.rpartition(".")
    with pytest.raises(ImportError, match=text):
        exec(f"from {package} import {name}")
    with pytest.raises(ImportError, match=text):
        exec(f"from {old} import anything")
    exec(statement)


@pytest.mark.parametrize(("old", "new", "name"), NAMES)
def test_an_old_name_is_an_error_that_has_the_new_one(old, new, name):
    text = f"^{name} moved: from {re.escape(new)} import {name}$"
    with pytest.raises(ImportError, match=text):
        exec(f"from {old} import {name}")
    module = importlib.import_module(old)
    with pytest.raises(AttributeError, match=text):
        getattr(module, name)
    assert not hasattr(module, name)
    exec(f"from {new} import {name}")


def test_other_names_are_unknown_as_ever():
    with pytest.raises(ImportError, match=r"cannot import name 'Nothing' from 'amanda.tools.pruning'"):
        exec("from amanda.tools.pruning import Nothing")
    with pytest.raises(AttributeError, match=r"module 'amanda.tools' has no attribute 'Nothing'"):
        _ = amanda.tools.Nothing
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'amanda.tools.nothing'"):
        importlib.import_module("amanda.tools.nothing")


@pytest.mark.parametrize("name", ["Flops", "NaNSentinel", "ChannelPruning"])
def test_a_tool_that_is_asked_of_amanda(name):
    package = "amanda.research" if name == "ChannelPruning" else "amanda.tools"
    text = f"^{name} is in {re.escape(package)}: from {re.escape(package)} import {name}$"
    with pytest.raises(ImportError, match=text):
        exec(f"from amanda import {name}")
    with pytest.raises(AttributeError, match=text):
        getattr(amanda, name)
    exec(f"from {package} import {name}")


def test_tools_and_their_modules_are_attributes(fresh_python):
    printed = fresh_python("""
        import amanda
        print(amanda.tools.flops.Flops is amanda.tools.Flops, amanda.research.pruning.HeadPruning.__name__)
        print(all(issubclass(getattr(amanda.tools, name), amanda.Tool) for name in amanda.tools.__all__))
    """)
    assert printed.split() == ["True", "HeadPruning", "True"]


def test_similar_names():
    with pytest.raises(
        AttributeError, match=r"^module 'amanda.tools' has no attribute 'Flop'; did you mean amanda.tools.Flops\?$"
    ):
        _ = amanda.tools.Flop
    with pytest.raises(AttributeError, match=r"^module 'amanda' has no attribute 'aply'; did you mean amanda.apply\?$"):
        _ = amanda.aply


def test_what_was_pickled_by_an_old_name_says_the_new_one():
    with pytest.raises(ImportError, match=r"import amanda.research.effective_path"):
        pickle.loads(b"camanda.tools.effective_path\nPath\n.")


def test_every_public_name_of_research_is_in_the_table_by_its_old_package():
    import amanda.research
    import amanda.research.pruning

    by_old = {old: set(names) for old, _, names in moved.NAMES}
    assert by_old["amanda.tools"] == set(amanda.research.__all__)
    assert by_old["amanda.tools.pruning"] == set(amanda.research.pruning.__all__) - {"GroupBy"}
