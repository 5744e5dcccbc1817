"""Where the package can be imported."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("_xxsubinterpreters", reason="this Python has no subinterpreters")

MESSAGE = (
    "[import] amanda does not support loading in subinterpreters, and neither does PyTorch; import it in the main "
    "interpreter (under mod_wsgi: WSGIApplicationGroup %{GLOBAL}), or use processes"
)


def run(program):
    """What a program prints. It is a process of its own: loading the core where it must not be loaded may hang."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("before", ["", "import amanda"], ids=["first", "after the main interpreter"])
def test_in_a_subinterpreter_it_is_an_error(before):
    printed = run(f"""
        import _xxsubinterpreters as interpreters
        {before}
        for isolated in (True, False):
            inner = interpreters.create(isolated=isolated)
            interpreters.run_string(inner, '''if True:
                import sys
                try:
                    import amanda
                except ImportError as error:
                    print(error, "amanda._core" in sys.modules, flush=True)
            ''')
    """)
    assert printed.splitlines() == [f"{MESSAGE} False"] * 2


def test_in_an_interpreter_that_an_embedding_program_makes_it_is_an_error():
    pytest.importorskip("_testcapi", reason="Py_NewInterpreter is called through CPython's test module")
    assert (
        run("""
        import _testcapi, sys
        sys.stdout.flush()
        _testcapi.run_in_subinterp('''if True:
            try:
                import amanda
            except ImportError as error:
                print(error, flush=True)
        ''')
        """)
        == MESSAGE
    )


def test_names_that_few_programs_use_are_imported_when_they_are_asked_for(fresh_python):
    late = [
        "points",
        "report",
        "trace",
        "tools",
        "toolkit",
        "research",
        "distributed",
        "PointTable",
        "ScopeDescription",
    ]
    printed = fresh_python(f"""
        import sys, amanda
        print([name for name in {late} if name in vars(amanda)])
        print([name for name in sys.modules if name.startswith(("amanda.tools", "amanda.toolkit", "amanda.distr"))])
        print(all(getattr(amanda, name) is not None for name in {late}), set(amanda.__all__) - set(dir(amanda)))
        try:
            amanda.nothing
        except AttributeError as error:
            print(error)
        from amanda import *
    """)
    assert printed.splitlines() == ["[]", "[]", "True set()", "module 'amanda' has no attribute 'nothing'"]
