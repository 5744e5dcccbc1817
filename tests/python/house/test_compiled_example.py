"""The example of a compiled model, run as a reader runs it: what it claims."""

import re

import pytest
from repository import ROOT

LINES = ["dense, eager", "pruned, eager", "pruned, compiled", "fine-tuned, compiled", "fine-tuned, eager"]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_a_network_pruned_eagerly_is_fine_tuned_compiled(preloaded, tmp_path, backend):
    example = ROOT / "examples" / "python" / "prune_compiled.py"
    done = preloaded.run(str(example), backend, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(\w.*?) +(\d+\.\d)%$", done.stdout, flags=re.MULTILINE))
    assert list(found) == LINES
    dense, pruned, pruned_compiled, tuned, tuned_eager = (float(share) for share in found.values())
    assert dense > 90
    assert pruned < dense - 10
    assert pruned_compiled == pytest.approx(pruned, abs=0.2)  # an image of 597: sums in another order
    assert tuned > pruned + 10
    assert tuned_eager == pytest.approx(tuned, abs=0.2)
    zeros = re.search(r"relu returns in the compiled network, (\d+)% is zero", done.stdout)
    assert 5 < int(zeros[1]) < 95
