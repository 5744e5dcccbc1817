"""What each tool takes, what the same took elsewhere, and what it was compared with."""

import dataclasses
import importlib
from pathlib import Path

import code_lines
from markdown_page import table

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "python"


@dataclasses.dataclass(frozen=True)
class Published:
    """Lines of a project in Table 4 of Y. Guan et al. (Amanda, ASPLOS 2024)."""

    project: str
    native: int
    amanda: int


@dataclasses.dataclass(frozen=True)
class Compared:
    """A tool that edits, and the test that compares its training with an oracle's, to the bit."""

    tool: str  # as docs/tools.md names it: module.Class
    oracle: str
    test: str  # file::function, in a folder of tests/python
    steps: int | None  # of training that the test compares; None if the tool does not train
    published: Published | None = None
    native: str | None = None  # the folder of its C++ sources


TOOLS = [
    Compared(
        "pruning.MagnitudePruning",
        "`torch.nn.utils.prune.l1_unstructured`",
        "test_pruning_tool.py::test_training_is_that_of_torchs_prune",
        20,
    ),
    Compared(
        "pruning.VectorwisePruning",
        "a loop that masks weights and gradients, with masks from a search over all patterns",
        "test_pruning_tool.py::test_two_of_four_trains_as_a_loop_that_masks_weights_and_gradients_by_hand",
        20,
        Published("APEX", native=499, amanda=279),
    ),
    Compared(
        "research.TilewisePruning",
        "`torch.nn.utils.prune.custom_from_mask`, with masks from loops over tiles",
        "test_tilewise_pruning.py::test_training_is_that_of_torchs_prune_with_masks_from_the_second_step_on",
        20,
        Published("its own", native=1203, amanda=213),
    ),
    Compared(
        "research.ActivationPruning",
        "activation functions by hand",
        "test_activation_pruning.py::test_training_with_a_threshold_is_that_of_a_model_with_fatrelu",
        20,
        Published("dynamic convolutions", native=650, amanda=193),
    ),
    Compared(
        "pruning.SparsitySchedule",
        "`torch.ao.pruning.CubicSL`, and `torch.nn.utils.prune` at each change",
        "test_sparsity_schedule.py::test_gradual_pruning_trains_as_torchs_prune_with_masks_made_at_each_change",
        20,
    ),
    Compared(
        "research.ChannelPruning",
        "modules with gates, by hand",
        "test_channel_pruning.py::test_a_resnet_trains_as_one_with_modules_by_hand",
        20,
        Published("FBS", native=387, amanda=115),
    ),
    Compared(
        "research.CascadePruning",
        "an encoder with the rule in it; BERT and ALBERT without the tokens",
        "test_cascade_pruning.py::test_twenty_steps_are_those_of_a_module_by_hand",
        20,
        Published("Block-Skim", native=1105, amanda=179),
    ),
    Compared(
        "research.HeadPruning",
        "zeros in front of the output projections of BERT and ALBERT",
        "test_head_pruning.py::test_heads_are_pruned_as_zeros_in_front_of_the_output_projection",
        20,
    ),
    Compared(
        "quantization.FakeQuantization",
        "`torch.ao.quantization.FakeQuantize` modules",
        "test_quantization_tool.py::test_a_convolutional_network_trains_as_one_with_modules",
        20,
    ),
    Compared(
        "research.LearnedStepQuantization",
        "modules with the paper's expression around each factor",
        "test_lsq.py::test_training_is_that_of_modules",
        20,
    ),
    Compared(
        "quantization.DynamicQuantization",
        "`torch.ao.quantization.quantize_dynamic`",
        "test_dynamic_quantization.py::test_transformers_compute_as_with_quantized_modules",
        None,
    ),
    Compared(
        "quantization.StaticQuantization",
        "`torch.ao.quantization.prepare` and `convert`",
        "test_static_quantization.py::test_library_models_compute_as_the_converted_ones",
        None,
    ),
    Compared(
        "research.ErrorInjection",
        "the same faults by hand, drawn from the same seed",
        "test_error_injection.py::test_twenty_steps_of_training_are_those_of_the_same_faults_by_hand",
        20,
    ),
    Compared(
        "capture.Patch",
        "a forward hook that puts the same values in",
        "test_capture.py::test_a_patched_run_is_that_of_a_forward_hook",
        None,
    ),
    Compared(
        "rewriting.SubgraphRewriting",
        "a BERT whose layers are fused by hand; `torch.fx.experimental.optimization.fuse`",
        "test_rewriting_tool.py::test_a_bert_trains_as_one_whose_layers_are_fused_by_hand",
        20,
    ),
    Compared(
        "research.Rematerialization",
        "the same program without a budget",
        "test_rematerialization_tool.py::test_twenty_steps_in_a_budget_are_those_without_it",
        20,
        native="research/rematerialization",
    ),
    Compared(
        "research.EffectivePath",
        "loops over single neurons",
        "test_effective_path_tool.py::test_paths_are_those_of_loops_over_single_neurons",
        None,
    ),
]


def kind_of(tool):
    module, name = tool.rsplit(".", 1)
    return getattr(
        importlib.import_module(f"amanda.{module}" if module == "research" else f"amanda.tools.{module}"), name
    )


def file_of(test):
    """The path of a test's file, from the root."""
    (path,) = TESTS.glob(f"*/{test.partition('::')[0]}")
    return path.relative_to(ROOT)


def counted(rows):
    """The lines of tools: of their own files, and with all files of tools that these import. A file counts once."""
    own = {code_lines.file_of(kind_of(row.tool)) for row in rows}
    shared = {path for file in own for path in code_lines.imported(file)}
    folders = [ROOT / row.native for row in rows if row.native]
    native = [path for folder in folders for path in folder.iterdir() if path.suffix in (".cpp", ".h")]
    return code_lines.lines([*own, *native]), code_lines.lines([*shared, *native])


def reports():
    """The lines of what prints the tables of all tools."""
    return code_lines.lines(sorted((code_lines.PACKAGE / "reports").glob("*.py")))


def markdown():
    headings = ["", "lines", "with shared code", "paper's Amanda tool", "native project", "steps compared", "oracle"]
    rows = []
    for row in TOOLS:
        file = file_of(row.test)
        steps = "" if row.steps is None else row.steps
        oracle = f"{row.oracle} ([{file.stem}](../{file}))"
        published = (
            [row.published.amanda, f"{row.published.native} ({row.published.project})"] if row.published else ["", ""]
        )
        rows.append([f"`{row.tool}`", *counted([row]), *published, steps, oracle])
    both = [row for row in TOOLS if row.published]
    sums = [sum(getattr(row.published, field) for row in both) for field in ("amanda", "native")]
    rows.append([f"the {len(both)} that are in the paper, together", *counted(both), *sums, "", ""])
    text = table(headings, rows, texts=["oracle"])
    return f"{text}\n\nThe tables of results, `amanda.reports`, are {reports()} lines more, which all tools share."
