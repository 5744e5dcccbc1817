"""Uses what needs an optional library in a process that has none. `python without_extras.py FOLDER` prints, as JSON, what
each of `USES` raised, and how each command line of `COMMANDS` ended."""

import contextlib
import importlib.machinery
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

OPTIONAL = {
    "dask",
    "duckdb",
    "matplotlib",
    "networkx",
    "onnx",
    "onnxruntime",
    "pandas",
    "pyarrow",
    "safetensors",
    "tensorboard",
}


class Use(NamedTuple):
    """Something that needs optional libraries."""

    imports: list[str]  # "file, library": the import statements that it reaches
    run: Callable[[Path], Any]


def _tool(name: str, **options: Any) -> Any:
    """A tool of `amanda.tools` that has seen an operator: "profile.Profile"."""
    import amanda
    import torch

    module, kind = name.split(".")
    tool = getattr(getattr(__import__(f"amanda.tools.{module}").tools, module), kind)(**options)
    with amanda.apply(tool):
        torch.ones(2).relu()
    return tool


def _dataset(folder: Path) -> Path:
    (folder / "rank=0").mkdir(parents=True)
    (folder / "rank=0" / "part-0.parquet").touch()
    return folder


def _report(folder: Path) -> Any:
    import amanda

    return amanda.report(_dataset(folder / "dataset"))


def _runtime(folder: Path) -> Any:
    from amanda.cli import onnx_model

    return onnx_model.runtime()


USES = {
    "to_pandas": Use(["reports/data_frame.py, pandas"], lambda _: _tool("statistics.OpStatistics").to_pandas()),
    "to_parquet": Use(
        ["reports/exports.py, pandas", "reports/exports.py, pyarrow"],
        lambda folder: _tool("flops.Flops").to_parquet(folder / "rows.parquet"),
    ),
    "amanda.report": Use(["reports/rank_report.py, duckdb"], _report),
    "to_networkx": Use(["tools/graph/graph.py, networkx"], lambda _: _tool("graph.GraphTracing").graph.to_networkx()),
    "plot_sparsity": Use(
        ["tools/histograms.py, matplotlib"], lambda _: _tool("histograms.ValueHistograms").plot_sparsity()
    ),
    "plot_kernel_families": Use(
        ["tools/cupti_profiler/profiler.py, matplotlib"],
        lambda _: _tool("cupti_profiler.CuptiProfiler", gpu=False).plot_kernel_families(),
    ),
    "ExportDiff": Use(
        ["tools/export_diff/libraries.py, onnx", "tools/export_diff/libraries.py, onnxruntime"],
        lambda folder: _tool("export_diff.ExportDiff", path=folder / "model.onnx"),
    ),
    "an ONNX file": Use(["cli/onnx_model.py, onnx", "cli/onnx_model.py, onnxruntime"], _runtime),
    "Capture": Use(
        ["tools/capture/stores.py, safetensors", "toolkit/tensor_file.py, safetensors"],
        lambda folder: _tool("capture.Capture", ops="relu", folder=folder / "captured"),
    ),
    "History parquet": Use(
        ["tools/history/parquet.py, pyarrow"], lambda folder: _tool("history.History", parquet=folder / "history")
    ),
    "History tensorboard": Use(
        ["tools/history/tensorboard.py, tensorboard"],
        lambda folder: _tool("history.History", tensorboard=folder / "history"),
    ),
}

#: Command lines that end before the program runs.
COMMANDS = [
    "run -t profile --out results --format parquet train.py",
    "profile --parquet rows.parquet train.py",
    "flops --parquet rows.parquet train.py",
    "diff --against-onnx model.onnx train.py",
    "ls model.onnx",
    "watch --parquet out train.py",
    "watch --tensorboard out train.py",
]
#: Command lines that need none of the libraries.
BARE_COMMANDS = [
    "doctor train.py",
    "ls train.py",
    "nan train.py",
    "run -t profile --html page.html train.py",
    "profile train.py",
    "profile --by op train.py",
    "profile --csv rows.csv --json rows.json train.py",
    "flops train.py",
    "memory --html page.html train.py",
    "diff --record out train.py",
    "diff --html page.html train.py train.py",
    "trace -e relu:output train.py",
    "trace -e relu:output --json rows.json train.py",
    "watch train.py",
    "run -t profile --out results --format json,csv train.py",
]


class Finder(importlib.machinery.PathFinder):
    """Finds what is installed, but for the optional libraries."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in OPTIONAL else super().find_spec(name, path, target)


def raised(use: Use, folder: Path) -> str | None:
    try:
        use.run(folder)
    except ImportError as error:
        return str(error)
    return None


def ended(command: str) -> dict[str, Any]:
    """The exit status, what was printed, and whether the program ran."""
    from amanda.cli.main import main

    printed, status = io.StringIO(), None
    ran = Path("ran")
    ran.unlink(missing_ok=True)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(command.split())
        except SystemExit as error:
            status = error.code
    return {"status": status, "printed": printed.getvalue(), "ran": ran.exists()}


def main(folder: Path) -> None:
    sys.meta_path = [Finder if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
    os.chdir(folder)
    found: dict[str, Any] = {name: raised(use, folder) for name, use in USES.items()}
    Path("train.py").write_text("import torch\ntorch.ones(2).relu()\nopen('ran', 'w').close()\n")
    found |= {command: ended(command) for command in [*COMMANDS, *BARE_COMMANDS]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
