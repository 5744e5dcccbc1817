"""The examples for TensorFlow, run as a reader runs them: what they claim."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from repository import ROOT

EXAMPLES = ROOT / "examples" / "python"


def printed(name: str) -> str:
    """What an example prints; it must succeed, and find no network."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run([sys.executable, EXAMPLES / name], env=os.environ | nowhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_transformer_is_watched_and_trained_alike() -> None:
    text = printed("tensorflow_transformer.py")
    layers = re.findall(r"^  (\S*attention\S*) +(\d\.\d\d) \d\.\d\d \d\.\d\d (\d\.\d\d)$", text, re.MULTILINE)
    assert len(layers) == 2
    assert all(0.3 < float(last) < float(first) < 1 for _, first, last in layers)
    gradients = re.findall(r"^  (\S*attention\S*)( +\d\.\d{4}){4}$", text, re.MULTILINE)
    assert {name for name, _ in gradients} == {name for name, _, _ in layers}
    (accuracy,) = re.findall(r"^accuracy ([\d.]+)%$", text, re.MULTILINE)
    assert float(accuracy) > 60
    assert text.endswith("trained without the tool, the weights are the same, bit for bit\n")
