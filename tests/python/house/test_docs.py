"""The code in the documentation runs as printed."""

import functools
import re
from typing import Literal

import amanda
import page_outputs
import pytest
import torch
from amanda.reports.results import Results
from process_groups import destroy_group
from repository import ROOT


def blocks(page, language):
    text = (ROOT / "docs" / page).read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, match.start()) + 2, match[1]


def run(page, line, code, names):
    exec(compile("\n" * (line - 1) + code, str(ROOT / "docs" / page), "exec"), names)


def run_page(page):
    names = {}
    for line, code in blocks(page, "python"):
        run(page, line, code, names)


(PRELUDE_LINE, PRELUDE), *EXAMPLES = blocks("semantics.md", "python")


@pytest.mark.parametrize(("line", "code"), EXAMPLES, ids=[f"line {line}" for line, _ in EXAMPLES])
def test_each_example_of_the_semantics_runs_by_itself(line, code):
    names = {}
    run("semantics.md", PRELUDE_LINE, PRELUDE, names)
    run("semantics.md", line, code, names)


def test_the_tools_of_writing_a_tool_run_one_after_the_other():
    run_page("writing_a_tool.md")


def test_the_page_on_the_toolkit_runs_from_top_to_bottom():
    run_page("toolkit.md")


def test_the_page_on_filters_runs_from_top_to_bottom():
    run_page("filters.md")


def test_the_page_on_durations_runs_from_top_to_bottom():
    run_page("durations.md")


def test_the_page_on_files_of_models_writes_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("model_files.md")
    assert (tmp_path / "x.npz").exists()


@pytest.mark.slow  # it exports a model
@pytest.mark.filterwarnings("ignore::FutureWarning")  # the exporter's own
def test_the_page_on_onnx_runtime_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("onnxruntime.md")


def test_the_page_for_users_of_other_tools_runs_and_prints_what_it_shows():
    page = ROOT / "docs" / "migrating.md"
    assert page_outputs.rewritten(page) == page.read_text(), f"run: python tests/python/support/page_outputs.py {page}"
    assert all(block.text for block in page_outputs.blocks(page) if "print(" in block.code)


@pytest.mark.parametrize("library", ["nnsight", "transformer_lens"])
def test_the_code_of_another_library_prints_what_amandas_code_prints(library):
    page = page_outputs.blocks(ROOT / "docs" / "migrating.md")
    ((at, theirs),) = [(at, block) for at, block in enumerate(page) if block.needs == library]
    assert theirs.text == page[at + 1].text
    if not page_outputs.installed(library):
        pytest.skip(f"{library} is not installed: its code did not run, only its recorded output was compared")


def test_the_page_on_mapping_runs():
    ((line, code),) = blocks("mapping.md", "python")
    run("mapping.md", line, code, {})


def test_the_graph_driver_in_python_works():
    ((line, code),) = blocks("writing_a_driver.md", "python")
    run("writing_a_driver.md", line, code, {})


def test_the_page_on_compiled_models_runs_from_top_to_bottom(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))  # not for minutes
    run_page("compiled_models.md")


@pytest.mark.slow
def test_the_page_on_compiled_models_runs_under_inductor():
    run_page("compiled_models.md")


def test_the_page_on_profiling_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("profiling.md")
    assert (tmp_path / "step.trace.json").exists()


@pytest.mark.filterwarnings("ignore:The inplace keyword:pandas.errors.Pandas4Warning")  # of Dask's own code
def test_the_page_on_distributed_programs_runs_on_one_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"model": torch.nn.Linear(2, 2), "train": lambda model: model(torch.ones(1, 2)).sum().backward()}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        for line, code in blocks("distributed.md", "python"):
            if "results" in code and not (tmp_path / "results").exists():  # which a command line of the page writes
                names["profile"].to_dataset("results/profile/op", "op")
            run("distributed.md", line, code, names)
    finally:
        destroy_group()
    assert [row.name for row in names["profile"].rows("op")].count("aten::linear") == 1
    assert (tmp_path / "trace.json").exists()


def test_the_tool_of_the_page_on_reports_has_figures():
    ((line, code),) = blocks("reports.md", "python")
    names = {"Results": Results, "Tool": amanda.Tool, "Row": object, "GroupBy": Literal["op"]}
    run("reports.md", line, code, names)
    tool = names["LossScale"]()
    tool.seconds, tool.scales = [0.0, 1.0], [65536.0, 32768.0]
    (curve,) = tool.figures()
    assert (curve.heading, list(curve.values)) == ("loss scale over time", tool.scales)


# Where the Python code of a page runs, if not in this file.
ELSEWHERE = {
    "building_cpp_tools.md": "tests/package/test_package.py",
    "quickstart.md": "tests/python/house/test_demo.py",
    "tensorflow.md": "tests/tensorflow/test_page.py",
    "tools.md": "tests/python/house/test_tools_page.py",
}


def test_the_python_code_of_every_page_runs_in_a_test():
    here = (ROOT / "tests" / "python" / "house" / "test_docs.py").read_text().partition('    "page",\n')[0]
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if "```python" in page.read_text()]
    missing = [page for page in pages if page not in ELSEWHERE and f'"{page}"' not in here]
    assert not missing
    assert all(page in (ROOT / test).read_text() for page, test in ELSEWHERE.items())


def test_every_rule_of_the_semantics_has_a_test_that_can_fail():
    assert len(EXAMPLES) > 30
    assert all("assert " in code for _, code in EXAMPLES)


def test_cpp_excerpts_are_those_of_the_examples():
    sources = "".join(path.read_text() for path in (ROOT / "examples" / "cpp").glob("*.cpp"))
    excerpts = [code for _, code in blocks("writing_a_tool.md", "cpp")]
    assert len(excerpts) == 4
    assert all(code in sources for code in excerpts)


def test_the_code_about_graphs_is_the_reference_drivers():
    text = (ROOT / "docs" / "writing_a_driver.md").read_text()
    start = text.count("\n", 0, text.index("## A graph"))
    sources = "".join(path.read_text() for path in (ROOT / "drivers" / "reference").glob("*.cpp"))
    excerpts = [code for line, code in blocks("writing_a_driver.md", "cpp") if line > start]
    assert len(excerpts) == 6
    assert all(code in sources for code in excerpts)


@pytest.mark.parametrize(
    "page",
    [
        "building_cpp_tools.md",
        "compiled_models.md",
        "concepts.md",
        "distributed.md",
        "durations.md",
        "filters.md",
        "glossary.md",
        "index.md",
        "installation.md",
        "limitations.md",
        "migrating.md",
        "profiling.md",
        "reference.md",
        "running.md",
        "semantics.md",
        "toolkit.md",
        "writing_a_driver.md",
        "writing_a_tool.md",
    ],
)
def test_links_and_named_files_exist(page):
    text = re.sub(r"^```.*?^```$", "", (ROOT / "docs" / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"\]\(([^)#:]+)\)", text) + [
        "../" + path for path in re.findall(r"`((?:src|drivers|python|examples|include|scripts)/[\w/.]+)`", text)
    ]
    missing = [path for path in named if not (ROOT / "docs" / path).exists()]
    assert not missing
    assert torch.is_grad_enabled()
