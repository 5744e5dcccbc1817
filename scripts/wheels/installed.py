"""Tries a wheel as users get it: in a fresh environment."""

import re
import sys
import tempfile
from pathlib import Path

from environment import Environment
from release import run

# A tool with routines, forward and backward, that must see what runs and change nothing.
PROGRAM = """
import amanda, torch

torch.manual_seed(0)
layer, x, seen = torch.nn.Linear(4, 2), torch.ones(3, 4), []
layer(x).sum().backward()
expected = layer.weight.grad.clone()
layer.weight.grad = None
tool = amanda.Tool()
tool.add_inst_for_op(lambda context: context.insert_before_op(lambda: seen.append(context.op.__name__), inputs=[]))
tool.add_inst_for_op(
    lambda context: context.insert_before_backward_op(lambda: seen.append("backward"), grad_outputs=[]),
    ops="linear", backward=True,
)
with amanda.apply(tool):
    layer(x).sum().backward()
assert seen[:2] == ["linear", "sum"] and "backward" in seen, seen
assert torch.equal(layer.weight.grad, expected)
print(amanda.__file__)
"""


def tried(wheel: Path, environment: Environment) -> str:
    """The line of `amanda doctor` on the build, after a program has run. Exits if either fails.

    The environment has the wheel alone, and finds the packages of the pair.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        run([environment.python, "-m", "venv", "--without-pip", folder / "env"])
        python = folder / "env" / "bin" / "python"
        pip = [environment.python, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
        run([*pip, wheel])
        (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        torch = environment.ask("import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])")
        (packages / "pair.pth").write_text(f"{torch}\n")
        where = run([python, "-W", "ignore", "-c", PROGRAM], PYTHONPATH="").strip()
        if not Path(where).is_relative_to(packages):
            sys.exit(f"[wheels] another amanda was imported: {where}")
        doctor = run([folder / "env" / "bin" / "amanda", "doctor"], PYTHONPATH="")
    (built,) = re.findall(r"^built for torch +(.*)$", doctor, re.MULTILINE)
    return f"works; built for {built}"
