"""`amanda doctor`: what it prints, and that the program it runs is none the wiser."""

import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from amanda.core.coverage.reasons import REASONS


@pytest.fixture
def doctor(tmp_path, run_python):
    """doctor(*arguments, script="..."): the finished process; the script is script.py in its folder."""

    def run(*arguments, script="", python=("-m", "amanda", "doctor")):
        folder = tmp_path / "programs"
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(textwrap.dedent(script))
        return run_python(*python, *arguments)

    return run


TRAINING = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    print("done")
"""


def columns(output, operator):
    """A row of the table: dispatched, seen, the rest."""
    found = re.search(rf"^  {re.escape(operator)} +(\d+) +(\d+) *(.*)$", output, re.MULTILINE)
    assert found, output
    return int(found[1]), int(found[2]), found[3]


def test_without_a_program_it_prints_the_installation(doctor):
    done = doctor()
    said = [
        line for line in done.stderr.splitlines() if "triton not found" not in line
    ]  # with CUDA, but without triton
    assert (done.returncode, said) == (0, [])
    lines = dict(re.split(r"  +", line, maxsplit=1) for line in done.stdout.splitlines())
    assert list(lines) == [
        "amanda",
        "python",
        "compiled by",
        "C library",
        "torch",
        "built for torch",
        "private names",
        "dispatch keys",
        "walk over frames",
        "typed kernels",
        "caught for filters",
        "torch.compile",
        "tensorflow",
        "onnxruntime",
        "thread-local storage",
    ]
    assert re.fullmatch(r"\d{2,} of torch's are used, and all are there", lines["private names"])
    assert re.fullmatch(
        r'compiled="graph" is available: \d{2,} private names are used, and all are there', lines["torch.compile"]
    )
    assert lines["tensorflow"] == "not installed"
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    abi = f"_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    assert lines["torch"] == f"{torch.__version__}, {cuda}, {abi}"
    minor = ".".join(torch.__version__.split(".")[:2])
    compiled_with = torch.__version__.partition("+")[0]
    assert lines["built for torch"] == f"{minor}; used: {minor}, compiled with {compiled_with}"
    assert re.fullmatch(rf"GNU [\d.]+, __GXX_ABI_VERSION=\d{{4}}, {abi}", lines["compiled by"])
    assert lines["C library"] == f"glibc {os.confstr('CS_GNU_LIBC_VERSION').split()[1]}"
    assert lines["thread-local storage"] == "amanda's is allocated when it is used; room for other libraries' is left"
    assert lines["dispatch keys"] == (
        "TESTING_ONLY_GenericWrapper where all tools name operators, TESTING_ONLY_GenericMode else"
    )
    assert lines["walk over frames"].startswith("direct" if sys.version_info < (3, 15) else "by Python's")
    assert int(lines["typed kernels"].split()[0]) > 50
    assert lines["caught for filters"] == "nothing"


def test_no_room_for_thread_local_variables(fresh_python, tmp_path):
    """Libraries that reserve it, loaded first, have taken the last byte."""
    source = tmp_path / "taker.c"
    source.write_text(
        'static __thread volatile char room[SIZE] __attribute__((tls_model("initial-exec")));\n'
        "char read_room(void) { return room[0]; }\n"
    )
    for size in (1024, 256, 64, 16, 4, 1):
        library = tmp_path / f"taker{size}.so"
        subprocess.run(["cc", "-shared", "-fPIC", f"-DSIZE={size}", "-o", library, source], check=True)
    printed = fresh_python(f"""
        import ctypes, pathlib, shutil
        import torch  # fails itself without room
        folder = pathlib.Path({str(tmp_path)!r})
        taken = 0
        for size in (1024, 256, 64, 16, 4, 1):
            for number in range(1000):
                copy = shutil.copy(folder / f"taker{{size}}.so", folder / f"copy{{size}}_{{number}}.so")
                try:
                    ctypes.CDLL(copy)
                except OSError as error:
                    assert "static TLS" in str(error), error
                    break
                taken += size
            else:
                raise AssertionError("it never ends")
        assert taken >= 1024, taken

        import amanda
        from amanda.cli.main import main
        shown = []
        tool = amanda.Tool("looks")
        tool.add_inst_for_op(lambda context: context.insert_before_op(shown.append), ops="relu")
        with amanda.apply(tool):
            torch.relu(torch.ones(1))
        assert len(shown) == 1
        main(["doctor"])
    """)
    assert printed.splitlines()[-1].split("  ", 1)[1].strip() == (
        "amanda's is allocated when it is used; the room reserved for other libraries' is used up: what is loaded now may "
        "fail with 'cannot allocate memory in static TLS block'; load it earlier, or set "
        "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096"
    )


def test_a_training_loop(doctor):
    done = doctor("programs/script.py", script=TRAINING)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\ndone\n" in done.stdout
    assert columns(done.stdout, "aten::linear") == (6, 6, "")
    assert columns(done.stdout, "aten::addmm") == (6, 0, "6 inner")
    assert columns(done.stdout, "autograd::AddmmBackward0") == (6, 6, "")
    seen = re.search(r"^backward: (\d+) dispatched, (\d+) seen, 0 skipped$", done.stdout, re.MULTILINE)
    assert seen
    assert seen[1] == seen[2]
    reasons = done.stdout.partition("skipped because\n")[2]
    assert REASONS["inner"] in reasons
    assert REASONS["backward"] in reasons
    assert "lost" not in reasons


def test_top(doctor):
    table = doctor("--top", "1", "programs/script.py", script=TRAINING).stdout.partition("\nforward: ")[2]
    assert re.findall(r"and \d+ more", table)
    assert len([line for line in table.splitlines() if re.match(r"  \S+ +\d+ +\d+", line)]) <= 2 + len(REASONS)


def test_the_program_runs_as_python_runs_it(doctor):
    script = """
        import json, os, sys
        print(json.dumps([__name__, __file__, sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals()]))
    """
    arguments = ["programs/script.py", "--top", "3", "-m", "x"]
    plain = doctor(*arguments, script=script, python=())
    done = doctor(*arguments, script=script)
    assert plain.returncode == done.returncode == 0
    assert plain.stdout.strip() in done.stdout.splitlines()


def test_a_module(doctor):
    script = "import sys; print(__name__, sys.argv[1:], sys.path[0])"
    plain = doctor("-m", "programs.script", "--flag", script=script, python=())
    done = doctor("-m", "programs.script", "--flag", script=script)
    assert plain.returncode == done.returncode == 0
    assert plain.stdout.strip() in done.stdout.splitlines()


@pytest.mark.parametrize(("given", "status", "printed"), [("", 0, ""), ("3", 3, ""), ("'a reason'", 1, "a reason\n")])
def test_exit_statuses_are_the_program_s(doctor, given, status, printed):
    done = doctor("programs/script.py", script=f"import sys, torch; torch.ones(2); sys.exit({given})")
    assert (done.returncode, done.stderr) == (status, printed)
    assert columns(done.stdout, "aten::ones") == (1, 1, "")


@pytest.mark.parametrize(
    "script",
    [
        "import torch\ndef f():\n    torch.ones(2) @ torch.ones(3)\nf()\n",
        "raise KeyError('x')\n",
        "1 +\n",
    ],
)
def test_errors_are_shown_as_python_shows_them(doctor, script):
    plain = doctor("programs/script.py", script=script, python=())
    done = doctor("programs/script.py", script=script)
    assert plain.returncode == done.returncode == 1
    assert done.stderr == plain.stderr
    assert "\nforward: " in done.stdout


def test_scopes_of_the_program_work_as_ever(doctor):
    script = """
        import amanda, torch
        tool = amanda.Tool("mine")
        seen = []
        tool.add_inst_for_op(lambda context: seen.append(context.op.name), ops="addmm")
        with amanda.apply(tool, coverage=True) as scope:
            torch.nn.functional.linear(torch.eye(2), torch.eye(2), torch.ones(2))
        print(seen, scope.coverage().row("aten::linear").skipped, scope.coverage().row("aten::addmm").seen)
    """
    done = doctor("programs/script.py", script=script)
    assert "['aten::addmm'] {'unasked': 1} 1" in done.stdout
    assert columns(done.stdout, "aten::linear") == (1, 1, "")
    assert columns(done.stdout, "aten::addmm") == (1, 0, "1 inner")


def test_compiled_functions_run_as_asked_for(doctor):
    script = """
        import torch
        torch.compile(lambda x: x.sin(), backend="aot_eager")(torch.ones(2))
    """
    done = doctor("--compiled", "eager", "programs/script.py", script=script)
    assert columns(done.stdout, "aten::sin") == (1, 1, "")
    head, function = done.stdout.splitlines()[-2:]
    assert head.startswith("compiled with torch.compile, but run eagerly here: results may differ")
    assert re.fullmatch(r"  __main__\.<lambda> \(.*programs/script\.py:3\)", function)
    done = doctor("--compiled", "opaque", "--top", "99", "programs/script.py", script=script)
    assert done.returncode == 0
    assert columns(done.stdout, "aten::sin")[1] == 0
    assert REASONS["opaque"] in done.stdout
    assert "run eagerly" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py"], "amanda doctor: error: can't open 'nowhere.py': No such file or directory"),
        (["m.safetensors"], "amanda doctor: error: 'm.safetensors' is no program: give the script that loads it"),
        (["-m"], "amanda doctor: error: argument -m: expected a module"),
        (["--top", "-1", "x.py"], "amanda doctor: error: argument --top: expected a number of rows, got -1"),
    ],
)
def test_wrong_command_lines(doctor, arguments, says):
    done = doctor(*arguments)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, says)
