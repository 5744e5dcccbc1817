"""The README's tool runs as printed."""

import re
import subprocess
import sys

from repository import ROOT


def test_the_tool_in_the_readme_runs():
    text = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    zeros = eval(done.stdout)
    assert set(zeros) == {"1", "3"}
    assert all(0 < share < 1 for share in zeros.values())
