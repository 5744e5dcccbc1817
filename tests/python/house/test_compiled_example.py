"""The example of a compiled model, run as a reader runs it: what it claims."""

import re
import subprocess
import sys

import pytest
from repository import ROOT

LINES = ["dense, eager", "pruned, eager", "pruned, compiled", "fine-tuned, compiled", "fine-tuned, eager"]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_network_pruned_eagerly_is_fine_tuned_compiled(backend):
    example = ROOT / "examples" / "python" / "prune_compiled.py"
    printed = subprocess.run([sys.executable, example, backend], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^(\w.*?) +(\d+\.\d)%$", printed, flags=re.MULTILINE))
    assert list(found) == LINES
    dense, pruned, pruned_compiled, tuned, tuned_eager = (float(share) for share in found.values())
    assert dense > 90
    assert pruned < dense - 10
    assert pruned_compiled == pytest.approx(pruned, abs=0.2)  # an image of 597: sums in another order
    assert tuned > pruned + 10
    assert tuned_eager == pytest.approx(tuned, abs=0.2)
    zeros = re.search(r"relu returns in the compiled network, (\d+)% is zero", printed)
    assert 5 < int(zeros[1]) < 95
