"""Notebooks: a kernel runs cells as Jupyter does, and the test gets what they show."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

needs_notebooks = pytest.mark.skipif(
    importlib.util.find_spec("nbclient") is None, reason="docs/requirements.txt is not installed; scripts/setup.sh docs"
)
# In a process of its own: the client of the kernel has an event loop, and warns of what it does not find on this machine.
_RUN = """
import json, sys
from jupyter_client import kernelspec
from nbclient import NotebookClient
from nbformat import v4
specs = kernelspec.KernelSpecManager()
specs.get_kernel_spec = lambda name: kernelspec.KernelSpec(
    argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python", display_name="test")
notebook = v4.new_notebook(cells=[v4.new_code_cell(code) for code in json.load(sys.stdin)])
client = NotebookClient(notebook, timeout=300, allow_errors=True)
client.create_kernel_manager().kernel_spec_manager = specs
client.execute()
json.dump([cell.outputs for cell in notebook.cells], sys.stdout)
"""


def run_cells(*cells):
    """The outputs of each cell, as `nbformat` has them."""
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-W", "ignore", "-c", _RUN]
    done = subprocess.run(
        command, input=json.dumps(cells), capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shown(outputs, kind="text/html"):
    """The one result that a cell has."""
    (result,) = [output["data"] for output in outputs if output["output_type"] in ("execute_result", "display_data")]
    return result[kind]


def printed(outputs, stream="stdout"):
    return "".join(output["text"] for output in outputs if output.get("name") == stream)
