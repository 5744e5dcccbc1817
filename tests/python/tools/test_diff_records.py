"""Records that are damaged, or end early, and runs that end early: what was not compared is never a difference."""

import json
import sys

import amanda
import pytest
import torch
from amanda.tools.diff import CausalDiff, RecordDiff, Recorder, record_writer
from amanda.tools.diff.record import DamagedRecord, Record

ADVICE = ("; record it again", "; make one with amanda diff --record")


def program(eps=1e-5, steps=1, stop=None):
    """Two operators with numbers that differ, and three that follow from nothing."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    for step in range(steps):
        y = torch.nn.functional.layer_norm(x * 2, (4,), eps=eps)
        if stop == step:
            raise ArithmeticError("stopped")
        y.relu().sum().backward()
    return x.grad


def recorded(folder, **options):
    with Recorder(folder) as recorder, amanda.apply(recorder):
        program(**options)
    return folder


@pytest.fixture
def folder(tmp_path):
    return recorded(tmp_path / "r")


def compared(folder, **options):
    diff = CausalDiff(folder)
    with amanda.apply(diff):
        program(**options)
    return diff


def causes(diff):
    return [(row.kind, row.name) for row in diff.rows()]


# ---- damage ----------------------------------------------------------------------------------------------------------


def is_refused(folder, name):
    """Is it? Else it must say that it ends early, and a comparison must be right about the rest."""
    found = None
    try:
        record = Record(folder)
    except ValueError as error:
        found = str(error)
    if found is None:
        assert not record.is_complete
        return False
    assert found.startswith("[diff] ")
    assert name in found or "is a record of version" in found
    assert found.endswith(ADVICE)
    return True


@pytest.mark.parametrize("name", ["index.jsonl", "1.safetensors"])
def test_a_file_that_is_cut_anywhere(folder, name):
    path = folder / name
    whole = path.read_bytes()
    for size in range(0, len(whole), 17):
        path.write_bytes(whole[:size])
        if is_refused(folder, name):
            continue
        assert name == "index.jsonl", "what it has of its tensors is whole"
        diff = CausalDiff(folder)
        assert diff.not_compared[0].startswith("what comes after the end of the record")


def test_what_is_left_of_an_index_is_compared_rightly(folder):
    path = folder / "index.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(2, len(lines)):
        path.write_bytes(b"".join(lines[:count]) + lines[count][:10])
        diff = compared(folder)
        assert causes(diff) == [], "neither what this run alone has, as the record ends, nor what follows"
        assert diff.not_compared[0].startswith("what comes after the end of the record")


@pytest.mark.parametrize("bit", [0, 3, 6])
def test_a_bit_that_is_flipped_anywhere_in_what_describes_tensors(folder, bit):
    for name in ("index.jsonl", "1.safetensors"):
        path = folder / name
        whole = path.read_bytes()
        head = len(whole) if name == "index.jsonl" else 8 + int.from_bytes(whole[:8], "little")
        for at in range(bit, head, 23):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert is_refused(folder, name) or name == "index.jsonl", f"byte {at}"
        path.write_bytes(whole)
    assert Record(folder).is_complete


def test_a_flipped_bit_of_a_tensor_is_found_where_it_is_read(folder):
    path = folder / "1.safetensors"
    whole = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(whole[:8], "little")
    for at in range(start, len(whole)):
        whole[at] ^= 16
    path.write_bytes(whole)
    record = Record(folder)
    stored = [(run, i) for _, run in record.executions for i, number in enumerate(run.results) if number is not None]
    for run, i in stored:
        with pytest.raises(
            DamagedRecord, match=r"1.safetensors: the elements of a tensor are others than were recorded"
        ):
            record.result(run, i)
    assert not compared(folder).differs, "hashes are enough where nothing differs"
    diff = compared(folder, eps=1e-2)
    assert "1.safetensors" in diff.damage
    assert causes(diff) == []


@pytest.mark.parametrize("name", ["index.jsonl", "1.safetensors"])
def test_a_file_that_is_missing(folder, name):
    (folder / name).unlink()
    assert is_refused(folder, name)


@pytest.mark.parametrize(
    "text", ["", "\n", "[]\n", "{}\n", '["amanda diff record"]\n', '["amanda diff record", []]\n', "\xff"]
)
def test_an_index_of_something_else(tmp_path, text):
    (tmp_path / "index.jsonl").write_bytes(text.encode("latin1"))
    assert is_refused(tmp_path, "index.jsonl")


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "r").write_text("")
    with pytest.raises(ValueError, match=r"is no record: it has no index.jsonl; make one with amanda diff --record"):
        CausalDiff(tmp_path / "r")


def test_a_record_of_another_version(tmp_path):
    (tmp_path / "index.jsonl").write_text(json.dumps(["amanda diff record", 2]) + "\n")
    with pytest.raises(ValueError, match="is a record of version 2, and this Amanda reads version 4; record it again"):
        CausalDiff(tmp_path)


def test_damage_while_the_program_runs_ends_the_comparison_and_not_the_program(folder):
    alone = program(eps=1e-2)
    diff = CausalDiff(folder)
    path = folder / "1.safetensors"
    path.write_bytes(path.read_bytes()[:-200])
    with amanda.apply(diff):
        result = program(eps=1e-2)
    assert torch.equal(result, alone), "nothing is replaced from then on"
    assert diff.damage == f"[diff] the record is damaged: {path}: it is cut short; record it again"
    assert causes(diff) == [], "what was not compared is no difference"
    stopped = str(diff.stopped)
    assert stopped.startswith("stopped here: aten::layer_norm (")
    assert stopped.endswith(f" of {diff.recorded} runs of operators: {diff.damage}")
    assert diff.not_compared[0] == "what comes after that"
    assert diff.summary.splitlines()[0] == stopped


def test_two_records_of_which_one_is_damaged(folder, tmp_path):
    other = recorded(tmp_path / "other", eps=1e-2)
    path = other / "1.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(
        ValueError, match=r"other/1.safetensors: the elements of a tensor are others than were recorded"
    ):
        RecordDiff(folder, other)


# ---- early ends ------------------------------------------------------------------------------------------------------


@pytest.fixture
def long(tmp_path):
    return recorded(tmp_path / "long", steps=3)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_what_a_run_that_failed_did_not_reach_is_no_difference(long, eps):
    diff = CausalDiff(long)
    with pytest.raises(ArithmeticError), amanda.apply(diff):
        program(eps, steps=3, stop=1)
    assert causes(diff) == ([("operator", "aten::layer_norm")] if eps != 1e-5 else [])
    assert str(diff.stopped).startswith("stopped here: aten::layer_norm (")
    assert str(diff.stopped).endswith(
        f"after {diff.compared} of {diff.recorded} runs of operators: the program failed or was stopped"
    )
    assert 0 < diff.compared < diff.recorded
    assert diff.not_compared == ["what comes after that"]
    assert "stopped here" in str(diff.table())


def test_an_operator_that_was_left_out_before_the_end_is_a_difference(tmp_path):
    def run(is_second=False):
        x = torch.ones(3).exp()
        if not is_second:
            x.sinh()
        x = x.cos()
        if is_second:
            raise ArithmeticError
        return x.log1p()

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    diff = CausalDiff(tmp_path / "r")
    with pytest.raises(ArithmeticError), amanda.apply(diff):
        run(is_second=True)
    assert ("only in reference", "aten::sinh") in causes(diff)
    assert ("only in reference", "aten::log1p") not in causes(diff)


def test_an_end_by_sys_exit_without_an_error_is_no_early_end(folder):
    diff = CausalDiff(folder)
    with pytest.raises(SystemExit), amanda.apply(diff):
        sys.exit(program() is None)
    assert diff.stopped is None
    assert diff.summary.startswith("0 differences in ")


def test_what_comes_after_the_end_of_a_record_is_no_difference(tmp_path):
    with pytest.raises(ArithmeticError):
        recorded(tmp_path / "r", steps=3, stop=1)
    assert not Record(tmp_path / "r").is_complete
    diff = compared(tmp_path / "r", steps=3)
    assert causes(diff) == []
    assert diff.not_compared == ["what comes after the end of the record, whose program failed or was stopped"]
    longer = recorded(tmp_path / "longer", steps=3)
    assert causes(RecordDiff(tmp_path / "r", longer)) == []
    assert causes(other := RecordDiff(longer, tmp_path / "r")) == []
    assert str(other.stopped).endswith("the program of the second record failed or was stopped")


def test_a_comparison_that_goes_on_in_another_scope(long):
    diff = CausalDiff(long)
    with pytest.raises(ArithmeticError), amanda.apply(diff):
        program(steps=3, stop=1)
    with amanda.apply(diff):
        torch.ones(2).sinh()
    assert diff.stopped is None
    assert ("only in this run", "aten::sinh") in causes(diff)


# ---- what was compared -------------------------------------------------------------------------------------------------


def test_files_of_tensors_are_safetensors(folder, monkeypatch):
    from safetensors.torch import load_file

    record, stored = Record(folder), load_file(folder / "1.safetensors")
    assert len(stored) > 5
    for _, run in record.executions:
        for i, number in enumerate(run.results):
            assert number is None or torch.equal(record.result(run, i), stored[str(number)])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "complex64", "bool", "int8", "int64", "uint8"])
def test_every_dtype_is_stored_bit_by_bit(tmp_path, dtype):
    def run():
        return [torch.arange(6).reshape(shape).to(getattr(torch, dtype)).clone() for shape in ((2, 3), (3, 2))]

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
        torch.zeros(0, 3, dtype=getattr(torch, dtype))
    record = Record(tmp_path / "r")
    made = [record.result(run, i) for _, run in record.executions for i in range(len(run.outputs))]
    made = [tensor for tensor in made if tensor is not None and tensor.dtype == getattr(torch, dtype)]
    assert {tuple(tensor.shape) for tensor in made} >= {(2, 3), (3, 2), (0, 3)}
    assert any(torch.equal(tensor, run()[1]) for tensor in made)


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2


def quantized():
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8).clone()


def sparse():
    return torch.eye(3).to_sparse() * 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "reason"), [(nested, "a nested tensor"), (quantized, "a quantized tensor"), (sparse, "a sparse tensor")]
)
def test_tensors_that_are_not_compared_are_counted_and_told(tmp_path, make, reason):
    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        make()
    diff = CausalDiff(tmp_path / "r")
    with amanda.apply(diff):
        make()
    assert not diff.differs
    (words,) = diff.not_compared
    assert words == f"2 results that could not be read (2: {reason})"
    assert diff.summary.startswith("no difference in what was compared (")


def causes_of(folder, run):
    diff = CausalDiff(folder)
    with amanda.apply(diff):
        run()
    return [(row.kind, row.name, row.backward_op, row.note) for row in diff.rows()]


def test_what_reads_a_tensor_that_is_not_compared_is_not_said_to_be_the_cause(tmp_path):
    def dense(scale=1.0):
        (torch.eye(3).to_sparse() * scale).to_dense()

    def product(scale=1.0):
        matrix = (torch.eye(3).to_sparse() * scale).detach()
        x = torch.zeros(3, 3, requires_grad=True)  # the results agree, the gradients do not
        torch.sparse.mm(matrix, x).sum().backward()

    for run in (dense, product):
        with Recorder(tmp_path / run.__name__) as recorder, amanda.apply(recorder):
            run()
        assert causes_of(tmp_path / run.__name__, run) == []
    assert causes_of(tmp_path / "dense", lambda: dense(2.0)) == [
        ("input not compared", "aten::to_dense", "", "self: a sparse tensor")
    ]
    ((kind, _, backward_op, note),) = causes_of(tmp_path / "product", lambda: product(2.0))
    assert (kind, note) == ("input not compared", "sparse: a sparse tensor")
    assert backward_op


def test_nothing_that_was_compared_is_told(tmp_path):
    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        pass
    diff = CausalDiff(tmp_path / "r")
    assert diff.summary == (
        "no difference in what was compared (0 operators, 0 results); not compared: anything at all, as no operator that "
        "both have returned a tensor"
    )


def test_what_is_tolerated_is_counted(tmp_path):
    def run(factor=1.0):
        return torch.ones(3) * factor

    with Recorder(tmp_path / "r") as recorder, amanda.apply(recorder):
        run()
    diff = CausalDiff(tmp_path / "r", rtol=0.5)
    with amanda.apply(diff):
        run(1.25)
    assert diff.summary == "0 differences in 2 operators, 2 results, forward, 1 of them within the tolerances"


def test_tolerances_between_dtypes_are_those_of_pytorch():
    from amanda.tools.diff.tolerances import Tolerances
    from torch.testing._comparison import default_tolerances

    names = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
    for one in names:
        for other in names:
            expected = default_tolerances(getattr(torch, one), getattr(torch, other))
            assert Tolerances(close=True).of({one, other}) == expected


@pytest.mark.parametrize(
    ("compiled", "how"),
    [
        ("eager", "ran eagerly, in place of the compiled code"),
        ("graph", "ran compiled with taps, which keep operators from being fused"),
        ("opaque", "ran compiled, and none of its operators was shown"),
    ],
)
def test_compiled_functions_are_told(tmp_path, compiled, how):
    def double(x):
        return x.exp() * 2

    function = torch.compile(double, backend="aot_eager")

    def run(folder, forward):
        with Recorder(folder) as recorder, amanda.apply(recorder, compiled=compiled):
            forward(torch.ones(3))
        return folder

    name = f"{__name__}.test_compiled_functions_are_told.<locals>.double ({__file__}:{double.__code__.co_firstlineno})"
    told = f"1 compiled function {how}: {name}"
    folder = run(tmp_path / "eager", double)
    diff = CausalDiff(folder)
    with amanda.apply(diff, compiled=compiled):
        function(torch.ones(3))
    assert told in diff.not_compared
    again = CausalDiff(run(tmp_path / "compiled", function))
    with amanda.apply(again, compiled=compiled):
        double(torch.ones(3))
    assert f"{told} in the reference" in again.not_compared
    assert told not in again.not_compared, "it ran in another scope"


def test_batches_are_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(record_writer, "BATCH_BYTES", 1)
    folder = recorded(tmp_path / "r")
    assert len(list(folder.glob("*.safetensors"))) > 3
    assert compared(folder).summary.startswith("0 differences in ")
