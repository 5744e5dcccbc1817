"""What the Python package asks of a driver, by one that only keeps a record of it."""

import sys

import amanda
import pytest
import torch
from amanda.cli.main import main
from amanda.driver import protocol, registry
from amanda.driver.optimizers import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

X = torch.ones(2)


class CoverageCounter:
    """Counts one operator that no tool saw."""

    def __init__(self, told):
        self.told = told

    def open(self):
        self.told.append("open")

    def close(self):
        self.told.append("close")

    def rows(self):
        return [("array::add", False, 0, {"own": 1})]


class ArrayDriver:
    framework = "Arrays"
    namespace_of_new = "mine"
    requires_gradient = "call with arrays that require one"

    loaded_with = None
    import_hooks = {}
    vocabulary = None

    def __init__(self, available=True, counts=True):
        self.options = {"layout": protocol.Option(("rows", "columns"), "how arrays lie in memory")}
        self.available, self.counts, self.told = available, counts, []
        self.names = ["array::add", "array::add.Number", "array::scale"]

    def is_available(self):
        return self.available

    def describe(self, whole=False):
        return [("arrays", "of the tests")]

    def could_name(self, name):
        return name.istitle()

    def load(self):
        self.told.append("load")

    @property
    def closed_namespaces(self):
        return frozenset({"array"})

    def operators(self):
        return self.names

    def has_operator(self, name):
        return False

    def operators_named_by(self, value):
        return ["array::add"] if value is ArrayDriver.load else []

    def enter(self):
        self.told.append("enter")

    def leave(self):
        self.told.append("leave")

    def make_coverage_counter(self, tools):
        return CoverageCounter(self.told) if self.counts else None

    def listen_to_optimizers(self, before, after):
        before("begun")
        after("done")
        return lambda: self.told.append("deaf")

    def remarks(self):
        return ["arrays were fine"]


@pytest.fixture
def register(monkeypatch):
    """register(driver, only=False): makes it known beside PyTorch's, or in its place, for this test."""

    def add(driver, only=False):
        if only:
            driver.options = {"compiled": protocol.Option(("auto", "later"), "when arrays are computed")}
        for known in ("_registered", "_loaded", "_refused"):
            monkeypatch.setattr(registry, known, [] if only else list(getattr(registry, known)))
        registry.register(driver)
        return driver

    return add


def test_a_driver_is_loaded_once_if_its_framework_is_installed(register):
    assert register(ArrayDriver()).told == ["load"]
    missing = register(ArrayDriver(available=False))
    assert missing.told == []
    assert missing in registry.registered()
    assert missing not in registry.loaded()


def test_it_takes_part_in_the_first_scope_and_the_last(register):
    driver = register(ArrayDriver())
    with amanda.apply(amanda.Tool()), amanda.apply(amanda.Tool()):
        torch.relu(X)
    with amanda.apply(amanda.Tool()):
        pass
    assert driver.told == ["load", "enter", "leave", "enter", "leave"]


def test_hooks_of_optimizers_reach_drivers_that_are_loaded_later(register):
    heard = []
    handles = [register_optimizer_step_pre_hook(heard.append), register_optimizer_step_post_hook(heard.append)]
    driver = register(ArrayDriver())
    assert heard == ["begun", "done"]
    for handle in handles:
        handle.remove()
    assert driver.told == ["load", "deaf", "deaf"]


def test_its_counts_stand_beside_those_of_other_drivers(register, recorder):
    driver = register(ArrayDriver())
    scope = amanda.apply(recorder(), coverage=True)
    with scope:
        torch.relu(X)
    assert driver.told == ["load", "enter", "open", "close", "leave"]
    assert scope.coverage().row("array::add").skipped == {"own": 1}
    assert scope.coverage().row("aten::relu").seen == 1


def test_a_driver_need_not_count(register, recorder):
    register(ArrayDriver(counts=False))
    scope = amanda.apply(recorder(), coverage=True)
    with scope:
        torch.relu(X)
    assert {row.operator.partition("::")[0] for row in scope.coverage().rows} == {"aten"}


def test_where_no_driver_counts_coverage_is_an_error(register, says):
    register(ArrayDriver(available=False), only=True)
    text = (
        "[scope] coverage counts what Arrays is asked for, and Arrays is not installed, or this build has no driver for "
        "it; apply the tools without coverage=True"
    )
    with says(amanda.Error, text):
        amanda.apply(amanda.Tool(), coverage=True)


def test_its_options_are_checked_whether_it_is_loaded_or_not(register, says):
    register(ArrayDriver(available=False))
    assert registry.checked({"layout": "columns", "compiled": "eager"}) == {"layout": "columns", "compiled": "eager"}
    for wrong in ("diagonals", None, ["rows"]):
        with says(ValueError, f'[scope] layout is "rows" or "columns", got {wrong!r}'):
            registry.checked({"layout": wrong})


def test_a_scope_holds_what_it_was_given():
    assert amanda.apply(amanda.Tool(), compiled="opaque").options == {"compiled": "opaque"}


def test_without_its_framework_the_package_can_be_used_and_says_so(fresh_python):
    program = """
        import sys
        sys.modules["torch"] = None
        import amanda
        with amanda.apply(amanda.Tool(), compiled="opaque"):
            pass
        try:
            amanda.apply(amanda.Tool(), compiled="never")
        except ValueError as error:
            print(error)
        from amanda.cli.main import main
        main(["doctor"])
    """
    lines = fresh_python(program).splitlines()
    assert lines[0] == '[scope] compiled is "auto" or "eager" or "graph" or "opaque", got \'never\''
    (row,) = [line.split(maxsplit=1)[1] for line in lines if line.startswith("torch ")]
    assert row.startswith('not installed; pip install "torch==')


def test_the_doctor_asks_each_driver(register, monkeypatch, capsys, tmp_path):
    register(ArrayDriver(), only=True)
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    main(["doctor", "--compiled", "later", str(script)])
    printed = capsys.readouterr().out.splitlines()
    assert "arrays of the tests" in [" ".join(line.split()) for line in printed]
    assert "ran" in printed
    assert printed[-1] == "arrays were fine"
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert "when arrays are computed" in capsys.readouterr().out


def test_names_of_operators_are_those_of_all_drivers(register, says):
    driver = register(ArrayDriver())
    for ops in ("scale", "array::scale", "add.Number", "relu"):
        amanda.Tool().add_inst_for_op(print, ops=ops)
    with says(ValueError, "[tool] Tool: no operator 'array::Scale'; did you mean 'array::scale'?"):
        amanda.Tool().add_inst_for_op(print, ops="array::Scale")
    with says(
        TypeError,
        f"[tool] Tool.add_inst_for_op: ops= takes operator names, got {ArrayDriver.load!r}; write ops='array::add'",
    ):
        amanda.Tool().add_inst_for_op(print, ops=ArrayDriver.load)
    driver.names = None
    amanda.Tool().add_inst_for_op(print, ops="array::Scale")


def test_no_name_is_wrong_without_a_framework(register):
    register(ArrayDriver(available=False), only=True)
    amanda.Tool().add_inst_for_op(print, ops="conv2D")
