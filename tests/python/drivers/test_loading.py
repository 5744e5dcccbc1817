"""Drivers that are loaded when the program imports their framework: the hook, and what scopes make of a late driver."""

import importlib
import importlib.util
import sys
import threading
import types
import warnings

import amanda
import pytest
from amanda.driver import imports, protocol, registry


@pytest.fixture
def framework(tmp_path, monkeypatch):
    """The name of a package that can be imported; its module `part` may fail."""
    package = tmp_path / "lateframe"
    package.mkdir()
    (package / "__init__.py").write_text("from lateframe import part\nready = True\n")
    (package / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lateframe"
    imports._awaited.pop("lateframe", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "lateframe"]:
        del sys.modules[name]


@pytest.fixture
def told(framework):
    """What was called back, after the import of the framework is awaited."""
    called = []
    imports.when_imported(framework, lambda: called.append(hasattr(sys.modules[framework], "ready")))
    return called


def ours():
    return [finder for finder in sys.meta_path if finder is imports._Finder]


@pytest.mark.parametrize("name", ["lateframe", "lateframe.part"])
def test_an_import_tells_once_when_the_module_is_complete(told, name):
    assert (told, len(ours())) == ([], 1)
    importlib.import_module(name)
    assert told == [True]
    importlib.reload(sys.modules["lateframe"])
    imports.tell()
    assert told == [True]


def test_the_hook_goes_when_nothing_is_awaited(told):
    others = dict(imports._awaited)
    others.pop("lateframe")
    importlib.import_module("lateframe")
    assert len(ours()) == bool(others)


def test_what_is_imported_already_is_told_at_once(framework):
    importlib.import_module(framework)
    called = []
    imports.when_imported(framework, lambda: called.append(1))
    assert called == [1]


def test_looking_for_a_module_tells_nothing_and_its_loader_stays(told):
    assert type(importlib.util.find_spec("lateframe").loader).__name__ == "SourceFileLoader"
    assert told == []
    module = importlib.import_module("lateframe")
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(module.__spec__.loader)


def test_a_lazy_loader_tells_when_the_module_is_used(told):
    spec = importlib.util.find_spec("lateframe")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["lateframe"] = module
    spec.loader.exec_module(module)
    assert told == []
    assert module.ready
    assert told == [True]


def test_a_failed_import_may_be_tried_again(told, monkeypatch):
    monkeypatch.setitem(sys.modules, "lateframe.part", None)
    with pytest.raises(ImportError):
        importlib.import_module("lateframe")
    assert told == []
    monkeypatch.delitem(sys.modules, "lateframe.part")
    importlib.import_module("lateframe")
    assert told == [True]


def test_a_loader_that_cannot_be_changed_and_a_hook_that_is_gone_are_made_up_for(told, monkeypatch):
    class Fixed:
        __slots__ = ()

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            module.ready = True

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.util.spec_from_loader(name, Fixed()) if name == "lateframe" else None

    monkeypatch.setattr(sys, "meta_path", [imports._Finder, Finder, *sys.meta_path])
    importlib.import_module("lateframe")
    assert told == []
    with amanda.apply(amanda.Tool()):
        assert told == [True]


def test_a_stand_in_and_a_module_that_is_being_imported_are_not_told(told, monkeypatch):
    monkeypatch.setitem(sys.modules, "lateframe", types.ModuleType("lateframe"))
    imports.tell()
    monkeypatch.setitem(sys.modules, "lateframe", None)
    imports.tell()
    module = types.ModuleType("lateframe")
    module.__spec__ = importlib.util.spec_from_loader("lateframe", None)
    module.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, "lateframe", module)
    imports.tell()
    assert told == []


# ---- drivers -----------------------------------------------------------------------------------------------------------


class LateDriver:
    framework = "Lateframe"
    import_hooks = {}
    loaded_with = "lateframe"
    namespace_of_new = "late"
    closed_namespaces = frozenset()
    options = {}

    def __init__(self, refuses=None):
        self.refuses, self.told = refuses, []

    def is_available(self):
        return True

    def could_name(self, name):
        return name.istitle()

    def load(self):
        self.told.append("load")
        if self.refuses is not None:
            raise self.refuses

    def operators(self):
        return ["late::Scale"]

    def has_operator(self, name):
        return False

    def operators_named_by(self, value):
        return []

    def enter(self):
        self.told.append("enter")

    def leave(self):
        self.told.append("leave")

    def make_coverage_counter(self, tools):
        return None


@pytest.fixture
def register(framework, monkeypatch):
    def add(driver, only=False):
        for known in ("_registered", "_loaded", "_refused"):
            monkeypatch.setattr(registry, known, [] if only else list(getattr(registry, known)))
        if only:
            driver.options = {"compiled": protocol.Option(("auto", "later"), "when arrays are computed")}
        registry.register(driver)
        return driver

    return add


def test_a_driver_is_loaded_with_its_framework_also_in_an_open_scope(register):
    driver = register(LateDriver())
    assert (driver.told, driver in registry.waiting(), driver in registry.loaded()) == ([], True, False)
    with amanda.apply(amanda.Tool()):
        assert driver.told == []
        importlib.import_module("lateframe")
        assert driver.told == ["load", "enter"]
    assert driver.told == ["load", "enter", "leave"]
    with amanda.apply(amanda.Tool()):
        pass
    assert driver.told[3:] == ["enter", "leave"]
    assert (driver in registry.waiting(), driver in registry.loaded()) == (False, True)


def test_another_thread_may_import_it(register):
    driver = register(LateDriver())
    with amanda.apply(amanda.Tool()):
        thread = threading.Thread(target=importlib.import_module, args=("lateframe",))
        thread.start()
        thread.join()
    assert driver.told == ["load", "enter", "leave"]


@pytest.mark.parametrize("refused", [ImportError("[late] another version"), TypeError("[late] another version")])
def test_a_framework_that_does_not_fit_is_a_warning_and_the_program_runs(register, refused):
    driver = register(LateDriver(refused), only=True)
    with pytest.warns(UserWarning, match=r"^\[late\] another version$"):
        assert importlib.import_module("lateframe").ready
    text = r"^\[scope\] tools see nothing here: \[late\] another version$"
    with pytest.warns(UserWarning, match=text) as told, amanda.apply(amanda.Tool()):
        pass
    assert [warning.filename for warning in told] == [__file__]
    assert driver.told == ["load"]


def test_where_another_framework_is_seen_scopes_do_not_warn(register):
    register(LateDriver(ImportError("[late] another version")))
    with pytest.warns(UserWarning, match="another version"):
        importlib.import_module("lateframe")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with amanda.apply(amanda.Tool()):
            pass


def test_names_may_be_those_of_a_framework_that_is_imported_later(register, says):
    register(LateDriver())
    amanda.Tool().add_inst_for_op(print, ops="Scala")
    with says(ValueError, "[tool] Tool: no operator 'reluu'; did you mean 'relu' or 'rrelu' or 'relu_'?"):
        amanda.Tool().add_inst_for_op(print, ops="reluu")
    importlib.import_module("lateframe")
    with says(ValueError, "[tool] Tool: no operator 'Scala'; did you mean 'Scale'?"):
        amanda.Tool().add_inst_for_op(print, ops="Scala")


def test_import_amanda_imports_neither_tensorflow_nor_tools_in_cpp(fresh_python):
    program = """
        import sys
        import amanda
        with amanda.apply(amanda.Tool()):
            pass
        others = ("tensorflow", "keras", "jax")
        print([name for name in sys.modules if name.partition(".")[0] in others or name == "amanda._tools"])
    """
    assert fresh_python(program) == "[]"
