"""The programs a reader runs first, as they run them: what they claim, and that they need no network."""

import json
import pathlib
import re

import pytest
import torch
from preloaded import Preloaded
from repository import ROOT

QUICKSTART = ROOT / "examples" / "python" / "quickstart.py"
PAGE = ROOT / "docs" / "quickstart.md"


@pytest.fixture(scope="module")
def demo(preloaded) -> str:
    return _run(preloaded, ROOT / "examples" / "python" / "demo.py")


def test_the_demos_claims_hold(demo):
    assert "FAILED" not in demo
    claims = [line.removeprefix("  ok   ") for line in demo.splitlines() if line.startswith("  ok   ")]
    assert len(claims) == 9
    assert "outputs are bit-equal with and without the tool (sentence-encoder, 3 passes)" in claims
    assert "outputs are bit-equal with and without the tool (resnet-50, 3 passes)" in claims
    assert "111 calls of aten::linear = 37 Linear modules x 3 passes" in claims
    assert "159 calls of aten::conv2d = 53 Conv2d modules x 3 passes" in claims
    assert "the scores change back after it, to the last bit" in claims
    assert re.match(r"demo: all 9 claims hold \(\d+ s\); open build/demo/", demo.splitlines()[-1])


def test_the_demos_scores_change_and_change_back(demo):
    score = r" +(-?\d\.\d{4})"
    rows = re.findall(rf"^(before|attention block 5 silenced|after){score}{score}$", demo, flags=re.MULTILINE)
    assert [name for name, *_ in rows] == ["before", "attention block 5 silenced", "after"]
    before, during, after = ([float(score) for score in scores] for _, *scores in rows)
    assert before == pytest.approx([0.91, 0.0], abs=0.02)
    assert after == before
    assert all(abs(a - b) > 0.01 for a, b in zip(before, during, strict=True))


def test_the_demos_tables_fit_100_columns(demo):
    assert max(map(len, demo.splitlines())) <= 100
    for row in ("aten::conv2d", "aten::scaled_dot_product_attention", "(165 more)", "total"):
        assert any(line.strip().startswith(row) for line in demo.splitlines())


@pytest.mark.parametrize(
    ("model", "operator", "calls"), [("sentence-encoder", "linear", 111), ("resnet-50", "conv2d", 159)]
)
def test_the_demos_traces_hold_every_run(demo, model, operator, calls):
    trace = json.loads((ROOT / "build" / "demo" / f"{model}.trace.json").read_text())
    runs = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    claimed = re.search(rf"the trace has all (\d+) operator calls: .*{model}", demo)
    assert len(runs) == int(claimed.group(1))
    assert sum(event["name"] == f"aten::{operator}" for event in runs) == calls
    assert all(event["dur"] >= 0 and {"ts", "pid", "tid", "args"} <= event.keys() for event in runs)
    assert trace["otherData"] == {"dropped_events": 0}


def test_quickstart_prints_what_module_hooks_measure(preloaded):
    printed = re.findall(r"^ *(\d+\.\d\d)  (\S+)$", _run(preloaded, QUICKSTART), flags=re.MULTILINE)
    space: dict = {}
    exec(_blocks()[0], space)  # the model and the sentences of the page are those of the program
    largest = {}
    for name, module in space["model"].named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(
                lambda _, inputs, name=name: largest.update({name: inputs[0].abs().max().item()})
            )
    with torch.no_grad():
        space["model"](**space["batch"])
    expected = sorted(largest.items(), key=lambda item: -item[1])[:8]
    assert [name for _, name in printed] == [name for name, _ in expected]
    assert [float(value) for value, _ in printed] == pytest.approx([value for _, value in expected], abs=0.01)


def test_the_code_of_the_quickstart_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space: dict = {"__name__": "page"}
    for block in _blocks():
        exec(block, space)
    printed = capsys.readouterr().out
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert shown in printed
    assert "aten::linear" in printed
    assert len(re.findall(r"clipped to .*: cosine", printed)) == 3
    assert json.loads((tmp_path / "encoder.trace.json").read_text())["traceEvents"]


def test_the_tool_of_the_quickstart_page_is_that_of_the_example():
    (tool,) = (block for block in _blocks() if block.startswith("class LargestInput"))
    assert tool in QUICKSTART.read_text()


def _blocks() -> list[str]:
    """The Python code on the quickstart page."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def _run(preloaded: Preloaded, program: pathlib.Path) -> str:
    """What `program` prints; it must succeed, and find no network."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    (done,) = preloaded.run_together([[str(program)]], [nowhere], folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
