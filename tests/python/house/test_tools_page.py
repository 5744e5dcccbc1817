"""docs/tools.md: its excerpts run, given the names they take for granted."""

import re

import amanda
import pytest
import rich
import torch
from repository import ROOT

PAGE = ROOT / "docs" / "tools.md"
SECTIONS = re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
EXCERPTS = [
    pytest.param(code, id=title)
    for title, text in SECTIONS
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize("code", EXCERPTS)
def test_the_excerpt_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def train_one_epoch(model):
        model(x).sum().backward()

    model, x = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.ones(1, 2)
    names = {"amanda": amanda, "rich": rich, "model": model, "x": x, "train_one_epoch": train_one_epoch}
    exec(code, names | {"my_tool": amanda.Tool()})
