"""`amanda run`: a program under tools that are named on the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from amanda.cli.run_folder import RunFolder
from amanda.cli.tool_list import Settings, made
from amanda.cli.tool_spec import SHIPPED, ToolSpec
from amanda.tools.profile import Profile

TRAINING = """
    import sys, torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    print("weights", [parameter.tolist() for parameter in model.parameters()], sys.argv[1:])
    if sys.argv[1:] == ["fail"]:
        raise RuntimeError("boom")
    if sys.argv[1:] == ["exit"]:
        sys.exit(7)
"""


@pytest.fixture
def amanda_run(tmp_path, run_python):
    def run(*arguments, script=TRAINING):
        (tmp_path / "script.py").write_text(textwrap.dedent(script))
        return run_python("-m", "amanda", "run", *arguments)

    return run


def test_tables_are_printed_and_the_program_is_as_without(amanda_run, preloaded, tmp_path):
    done = amanda_run(
        *(
            "-t",
            "profile",
            "-t",
            "flops",
            "--by",
            "module",
            "--top",
            "1",
            "--html",
            "page.html",
            "script.py",
            "--top",
            "x",
        )
    )
    assert (done.returncode, done.stderr) == (0, "")
    alone = preloaded.run("script.py", "--top", "x", folder=tmp_path).stdout
    assert done.stdout.startswith(alone)
    profile, flops = done.stdout[len(alone) :].split("\nflops\n")
    assert re.search(r"\n module +calls  total ms", profile)
    assert "(3 more)" in profile
    page = (tmp_path / "page.html").read_text()
    assert "<title>script.py --top x</title>" in page
    headings = re.findall(r'data-heading="(.*?)"', page)
    charts = ["profile: time of modules and their operators", "profile: operators over time"]
    assert headings[:3] == ["profile: answer", *charts]
    assert [heading for heading in headings[3:] if not heading.startswith("profile: ")] == [
        *(f"profile by {by}" for by in Profile().groupings()),
        *(f"flops by {by}" for by in ("both", "op", "module")),
        "coverage: what tools saw",
        "environment",
    ]
    assert "script.py:9" in page
    assert flops.split()[:3] == ["module", "runs", "MFLOP"]


def test_results_are_written_whatever_ends_the_program(amanda_run, tmp_path):
    done = amanda_run(
        *("-t", "profile(skip=1)", "-t", "flops", "--modules", "0,2", "--coverage"),
        *("--out", "new/out", "script.py", "fail"),
    )
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: boom\n")
    assert "amanda" not in done.stderr
    run = json.loads((tmp_path / "new/out/run.json").read_text())
    assert {
        key: run[key] for key in ("schema", "state", "status", "command", "tools", "files", "rank", "world_size")
    } == {
        "schema": 2,
        "state": "ended",
        "status": 1,
        "command": ["script.py", "fail"],
        "tools": ["profile", "flops"],
        "files": [
            "coverage.page.json",
            *(f"profile.{by}.json" for by in Profile().groupings()),
            "profile.page.json",
            *(f"flops.{by}.json" for by in ("both", "op", "module")),
            "flops.page.json",
        ],
        "rank": 0,
        "world_size": 1,
    }
    modules = {row["name"]: row for row in json.loads((tmp_path / "new/out/profile.module.json").read_text())}
    assert {name: row["calls"] for name, row in modules.items()} == {"0": 2, "2": 2}  # without the first of three
    again = amanda_run("-t", "flops", "--out", "new/out", "script.py")
    assert again.returncode == 2
    assert again.stdout == ""  # the program has not run
    assert again.stderr.endswith(
        "'new/out' holds a run already: give another folder, or --overwrite to replace that run\n"
    )
    replaced = amanda_run("-t", "flops", "--out", "new/out", "--overwrite", "--format", "csv", "script.py", "exit")
    assert replaced.returncode == 7
    assert sorted(os.listdir(tmp_path / "new/out")) == [
        "flops.both.csv",
        "flops.module.csv",
        "flops.op.csv",
        "run.json",
    ]


def test_a_schedule_counts_the_steps_of_optimizers(amanda_run, tmp_path):
    done = amanda_run("-t", "profile", "--schedule", "wait=1,active=1", "--out", "out", "script.py")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["name"]: row["calls"] for row in json.loads((tmp_path / "out/profile.op.json").read_text())}
    assert rows["aten::linear"] == 2  # two layers, in the second of three steps
    wrong = amanda_run("-t", "profile", "--schedule", "active=0", "script.py")
    assert (
        "--schedule is NAME=STEPS,... as wait=1,warmup=1,active=3; got 'active=0': [schedule] active= is"
        in wrong.stderr
    )


def test_ctrl_c(tmp_path):
    (tmp_path / "script.py").write_text(
        "import torch, time\ntorch.relu(torch.ones(1))\nprint('ready', flush=True)\ntime.sleep(100)\n"
    )
    command = [sys.executable, "-m", "amanda", "run", "-t", "profile", "--ops", "relu", "script.py"]
    program = subprocess.Popen(
        command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGINT)
    output, errors = program.communicate()
    assert program.returncode == -signal.SIGINT  # as Python's own: shells give 130
    assert "aten::relu" in output
    assert errors.endswith("KeyboardInterrupt\n")


def test_what_a_program_forks_prints_nothing(amanda_run):
    done = amanda_run(
        "-t",
        "profile",
        "script.py",
        script="""
            import os, sys, torch
            torch.relu(torch.ones(1))
            child = os.fork()
            if child:
                print("child's status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            else:
                sys.exit(3)
        """,
    )
    assert done.stdout.count("under profile") == 1
    assert done.stdout.startswith("child's status 3\n")


def test_a_tool_of_ones_own_and_toml(amanda_run, tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import amanda

            class Loud(amanda.Tool):
                def __init__(self, word, times=1):
                    super().__init__()
                    self.add_inst_for_op(lambda context: print(word * times, context.op.__name__), ops=["relu", "linear"])
            """
        )
    )
    (tmp_path / "run.toml").write_text(
        'tools = ["mine:Loud"]\nops = ["relu"]\n[options.Loud]\nword = "from TOML"\ntimes = 1\n'
    )
    script = "import torch\nprint(torch.relu(torch.nn.functional.linear(torch.ones(2), torch.ones(2, 2))))"
    done = amanda_run(
        "--config", "run.toml", "-t", "mine.py:Loud('x', times=2)", "-o", "Loud.times=3", "script.py", script=script
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[:3] == ["from TOML" * 3 + " relu", "xx relu", "tensor([2., 2.])"]


def test_a_tool_of_backward_operators_without_any(amanda_run):
    script = "import torch\nx = torch.ones(2, requires_grad=True)\ny = torch.relu(x).sum()\n"
    said = "amanda: [scope] tool 'GradientStatistics' looks at backward operators only, and none ran\n"
    assert amanda_run("-t", "gradients", "script.py", script=script).stderr == said
    assert amanda_run("-t", "gradients", "script.py", script=script + "y.backward()").stderr == ""


def test_main_is_the_module_that_others_hold(amanda_run, tmp_path):
    """dill, which torch imports where it is installed, pickles by it."""
    (tmp_path / "holds.py").write_text("import __main__ as main, amanda\nclass Tool(amanda.Tool): pass\n")
    script = "import holds, sys\nprint(holds.main is sys.modules['__main__'], vars(holds.main) is globals())"
    done = amanda_run("-t", "holds:Tool", "script.py", script=script)
    assert done.stdout.startswith("True True\n"), done.stderr


def test_a_program_that_sets_the_number_of_threads_gets_it(amanda_run, tmp_path):
    """torch reads it when it is imported, which is before the program runs."""
    script = """
        import importlib.util, os, sys
        assert "torch" not in sys.modules
        before = importlib.util.find_spec("torch")
        os.environ["OMP_NUM_THREADS"] = "3"
        from torch.nn import functional
        import torch
        print(torch.get_num_threads(), torch.nn.functional is functional, before.origin == torch.__spec__.origin)
        print(type(torch.__spec__.loader).__name__, torch.relu(torch.ones(1)).item(), "late_torch" in str(sys.meta_path))
    """
    done = amanda_run("-t", "profile", "script.py", script=script)
    assert done.stdout.startswith("3 True True\nSourceFileLoader 1.0 False\n"), done.stdout + done.stderr
    assert (
        amanda_run("-t", "profile", "script.py", script="import torch; print(torch.get_num_threads())").stdout[0] == "1"
    )


def test_another_thread_may_import_while_torch_is_hidden(run_python):
    code = """
        import sys, threading, torch
        from amanda.cli.late_torch import not_imported
        done = False
        def imports():
            while not done:
                for number in range(50):
                    sys.modules[f"part{number}"] = sys
                for number in range(50):
                    del sys.modules[f"part{number}"]
        sys.setswitchinterval(1e-6)
        thread = threading.Thread(target=imports)
        thread.start()
        try:
            for _ in range(300):
                with not_imported():
                    pass
        finally:
            done = True
            thread.join()
        print("torch" in sys.modules)
    """
    done = run_python("-c", textwrap.dedent(code))
    assert done.stdout == "True\n", done.stderr


MINE = """
import amanda
class Needs(amanda.Tool):
    def __init__(self, what):
        super().__init__()
class Fails(amanda.Tool):
    def __init__(self):
        super().__init__()
        {}["k"]
class Bare(amanda.Tool):
    def __init__(self):
        pass
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a tool: -t profile"),
        (("-t", "profile,flops"), "a tool has a -t of its own: -t profile -t flops"),
        (("-t", "statistics(by=3)"), "statistics: got an unexpected keyword argument 'by'; it takes no arguments"),
        (("-t", "profil"), "no tool is named 'profil'; did you mean 'profile'? known are activation_pruning, "),
        (
            ("-t", "profile(skp=1)"),
            "profile: got an unexpected keyword argument 'skp'; did you mean skip=? it takes (max_events: 'int' = ",
        ),
        (("-t", "profile", "--by", "epoch"), f"--by is {', '.join(Profile().groupings())}; got 'epoch'"),
        (("-t", "profile", "--format", "xml"), "--format is json, csv, parquet, got 'xml'"),
        (("-t", "profile", "--ops", "no_such"), "[tool] Profile: no operator 'no_such'"),
        (("-t", "profile", "--html", "no/page.html"), "argument --html: can't write 'no/page.html'"),
        (("-t", "profile", "--sort", "no_such"), "--sort is "),
        (("-t", "profile", "--out", "/proc/out"), "[Errno 2] No such file or directory: '/proc/out'"),
        (("-t", "profile", "--out", "script.py"), "--out is a folder, and 'script.py' is a file"),
        (("-t", "profile", "--out", ""), "--out is a folder, got ''"),
        (("-t", "mine.py:Needs"), "Needs: missing a required argument: 'what'; it takes (what)"),
        (("-t", "mine.py:Fails"), "Fails of mine.py can't be made: KeyError: 'k' (mine.py:"),
        (("-t", "mine.py:Bare"), "Bare of mine.py can't be made: Error: [tool] Bare.__init__ has not called super()."),
        (("-t", "mine.py:amanda"), "amanda of mine.py is <module "),
        (("-t", "mine.py:Nothing"), "Nothing of mine.py is not there"),
        (
            ("-t", "amanda.tools.pruning:TilewisePruning"),
            "TilewisePruning moved: from amanda.research.pruning import TilewisePruning",
        ),
        (
            ("-t", "amanda.tools.error_injection:ErrorInjection"),
            "ErrorInjection of amanda.tools.error_injection can't be made: ImportError: amanda.tools.error_injection "
            "moved: import amanda.research.error_injection",
        ),
        (("-t", "no.py:Nothing"), "there is no file 'no.py'"),
        (("-t", "wrong.py:Tool"), "Tool of wrong.py can't be made: SyntaxError: invalid syntax (wrong.py, line 1)"),
        (("-t", "needs.py:Tool"), "Tool of needs.py can't be made: ModuleNotFoundError: No module named 'not_there'"),
        (("-t", "exits.py:Tool"), "Tool of exits.py can't be made: SystemExit: 3 (exits.py:1)"),
        (("-t", "nothing_there:Tool"), "there is no module 'nothing_there'"),
        (
            ("-t", "memory", "-t", "memory"),
            "[scope] got two tools of type PeakMemory, and a scope can have one: PyTorch",
        ),
    ],
)
def test_mistakes_are_found_before_the_program_runs(tmp_path, monkeypatch, capsys, arguments, message):
    from amanda.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("raise AssertionError")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "wrong.py").write_text("x = = 1")
    (tmp_path / "needs.py").write_text("import not_there")
    (tmp_path / "exits.py").write_text("raise SystemExit(3)")
    with pytest.raises(SystemExit) as stopped:
        main(["run", *arguments, "script.py"])
    assert stopped.value.code == 2
    assert f"amanda run: error: {message}" in capsys.readouterr().err


def test_a_scope_that_cannot_be_entered_is_no_error_of_the_program(amanda_run, tmp_path):
    (tmp_path / "fails.py").write_text(
        textwrap.dedent(
            """
            import amanda

            class Fails(amanda.Tool):
                def on_enter(self):
                    {}["key"]

            class Refuses(amanda.Tool):
                def on_enter(self):
                    raise amanda.Error("[mine] not here")
            """
        )
    )
    told = "amanda: error: the program was not started: "
    done = amanda_run("-t", "profile", "-t", "fails.py:Fails", "--out", "out", "script.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Traceback ")
    assert '    {}["key"]' in done.stderr
    assert done.stderr.endswith(f"{told}KeyError: 'key'\n")
    assert os.listdir(tmp_path / "out") == []
    done = amanda_run("-t", "fails.py:Refuses", "script.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{told}[mine] not here\n"


def test_what_the_terminal_cannot_show_is_replaced(amanda_run, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = amanda_run("-t", "profile", "script.py", script="import torch; torch.relu(torch.ones(1))")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mean ?s" in done.stdout
    assert "aten::relu" in done.stdout


@pytest.mark.parametrize("text", ['{"files": [', "[1]", '{"files": [3, "../script.py"]}', '{"files": 3}', ""])
def test_what_is_left_of_a_broken_run_is_replaced(tmp_path, text):
    (tmp_path / "script.py").write_text("")
    (tmp_path / "out").mkdir()
    run = tmp_path / "out/run.json"
    run.write_text(text)
    with pytest.raises(FileExistsError, match="holds a run already"):
        RunFolder(str(run.parent), ["x"], [], ["json"])
    folder = RunFolder(str(run.parent), ["x"], [], ["json"], overwrite=True)
    assert run.read_text() == text, "until it begins"
    folder.begin()
    assert json.loads(run.read_text())["state"] == "running"
    assert (tmp_path / "script.py").exists()


def test_of_two_runs_that_begin_at_once_one_gets_the_folder(tmp_path):
    first, second = (RunFolder(str(tmp_path), [name], [], ["json"]) for name in ("first", "second"))
    first.begin()
    with pytest.raises(FileExistsError, match="holds a run already: give another folder"):
        second.begin()
    first.close("a text", 0)
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["command"], run["status"]) == (["first"], 1)


def test_what_cannot_be_written_is_printed(amanda_run, tmp_path):
    done = amanda_run(
        *("-t", "profile", "--by", "module", "--out", "out", "script.py"),
        script=TRAINING + "\n    import os\n    os.rename('out', 'gone')\n",
    )
    assert done.returncode == 2
    assert "amanda: can't write the results of profile: [Errno 2] No such file or directory" in done.stderr
    assert re.search(r"\n module +calls  total ms", done.stdout)
    assert json.loads((tmp_path / "gone/run.json").read_text())["state"] == "running"


@pytest.mark.parametrize("name", SHIPPED)
def test_names_are_those_of_tools(name):
    kind = ToolSpec.parse(name)._kind()
    assert ToolSpec.parse(kind.__name__) == ToolSpec.parse(name)


def test_arguments_are_literals():
    assert ToolSpec.parse("a.b:C(1, 'x', y=[2.5])") == ToolSpec("C", "a.b:C", (1, "x"), {"y": [2.5]})
    for text in ("profile(open('x'))", "profile(skip=x)", "profile(", "profile(**{})", "profile()[0]"):
        with pytest.raises(ValueError, match="arguments are Python literals, as in NAME"):
            ToolSpec.parse(text)


def test_two_tools_of_one_name_have_options_each():
    tools = made(Settings(tools=["profile", "profile(skip=5)"]), ["profile-2.max_events=3"])
    assert [(name, tool._skip, tool._max_events) for name, tool in tools] == [
        ("profile", 0, 100_000),
        ("profile-2", 5, 3),
    ]
    with pytest.raises(ValueError, match="options are given for 'profil', which is no tool of this run: profile"):
        made(Settings(tools=["profile"]), ["profil.skip=1"])
    with pytest.raises(ValueError, match=r"'skip=1' is no option: expected TOOL\.OPTION=VALUE"):
        made(Settings(tools=["profile"]), ["skip=1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools = 'profile'", "tools is a list of strings, got 'profile'"),
        (
            "tool = ['profile']",
            "there is no 'tool'; known are tools, ops, modules, out, options; did you mean 'tools'?",
        ),
        ("[options]\nprofile = 1", "options is a table for each tool, such as \\[options.profile\\]"),
        ("tools = [", "Invalid value"),
    ],
)
def test_mistakes_in_toml(tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ValueError, match=f"run.toml: {message}"):
        Settings.read(str(tmp_path / "run.toml"))
