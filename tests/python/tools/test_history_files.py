"""Files of History: read back by pandas and by TensorBoard's own reader; runs that end early, go on, or share a folder."""

import signal
import socket
import subprocess
import sys
import textwrap

import amanda
import pandas
import pytest
import torch
from amanda.tools.history import History
from history_runs import made, step_of, trained, values
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def scalars(folder):
    """TensorBoard's own reader: values by tag and step."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: {e.step: e.value for e in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}


def parquet(folder):
    frame = pandas.read_parquet(folder / "series")
    assert set(frame["rank"]) == {0}
    assert set(frame["host"]) == {socket.gethostname()}
    return frame.drop(columns=["host", "rank"])


def test_files_have_what_rows_have(tmp_path):
    model, optimizer = made(lr=0.1)
    history = History(model, parquet=tmp_path / "p", tensorboard=tmp_path / "t", flush_seconds=0)
    trained(history, model, optimizer, steps=3)
    rows = [
        (row.step, row.tool, row.name, row.op_id or 0, row.module_path, row.source, row.detail, row.quantity, row.value)
        for row in history.rows("step")
    ]
    assert list(parquet(tmp_path / "p").itertuples(index=False, name=None)) == rows
    assert len(list((tmp_path / "p" / "series" / "rank=0").glob("part-*.parquet"))) == 3  # one for each flush
    found = scalars(tmp_path / "t")
    assert len(found) == len({row[1:-1] for row in rows})
    assert found["loss"] == pytest.approx(values(history, "scalars", "loss", "value"), rel=1e-6)
    assert found["statistics.mean/relu"] == pytest.approx(values(history, "statistics", "aten::relu", "mean"), rel=1e-6)
    assert found["parameters.update_ratio/body.weight"] == pytest.approx(
        values(history, "parameters", "body.weight", "update_ratio"), rel=1e-6
    )


def test_operators_of_one_module_have_tags_of_their_own(tmp_path):
    history = History(tensorboard=tmp_path, limits=None)
    with amanda.scheduled(history) as run:
        x = torch.relu(torch.ones(2))
        for _ in range(2):
            x = torch.relu(x)
        torch.relu(x) + torch.relu(x)
        run.step()
    tags = [tag for tag in scalars(tmp_path) if tag.startswith("statistics.mean/relu")]
    assert len(tags) == len(set(tags)) == 4
    assert tags[0] == "statistics.mean/relu"
    assert all(tag.startswith("statistics.mean/relu test_history_files.py:") for tag in tags[1:])
    assert tags[3].endswith(" #2")


def test_a_folder_belongs_to_one_run(tmp_path, says):
    model, optimizer = made(lr=0.1)
    first, other = (History(model, parquet=tmp_path) for _ in range(2))
    trained(first, model, optimizer, steps=2)
    text = (
        f"[history] {str(tmp_path)!r} has another run; give each run a folder of its own, or go on with that one: "
        "resume=True"
    )
    with says(FileExistsError, text):
        History(model, tensorboard=tmp_path)
    with says(FileExistsError, text):  # it was made before the first had begun
        trained(other, model, optimizer)
    assert set(parquet(tmp_path)["step"]) == {0, 1}


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path, says):
    torch.manual_seed(0)
    x = torch.randn(9, 16, 4)

    def run(history, steps, model, optimizer, first_step=0):
        with amanda.scheduled(history, first_step=first_step) as scope:
            for step in range(first_step, steps):
                loss = model(x[step]).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                history.log(loss=loss)
                scope.step()
                if step == 3:
                    with amanda.disabled():
                        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "checkpoint")

    def new():
        model, optimizer = made(lr=0.1)
        return model.eval(), optimizer

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    model, optimizer = new()
    run(History(model, parquet=whole, tensorboard=whole), 9, model, optimizer)
    model, optimizer = new()
    run(History(model, parquet=parts, tensorboard=parts, flush_seconds=0), 6, model, optimizer)
    for thing, state in zip((model, optimizer), torch.load(tmp_path / "checkpoint"), strict=True):
        thing.load_state_dict(state)
    with says(
        ValueError,
        "[history] resume=True, and the first step is 0, would drop all that was written; tell the number of the first "
        "step: amanda.scheduled(history, first_step=...)",
    ):
        run(History(model, parquet=parts, resume=True), 6, model, optimizer)
    run(History(model, parquet=parts, tensorboard=parts, resume=True), 9, model, optimizer, first_step=4)
    columns = ["step", "tool", "name", "quantity", "value"]  # a place that runs in another call is another line
    expected, found = (parquet(folder)[columns].astype({"name": str}) for folder in (whole, parts))
    assert len(found) > 100
    pandas.testing.assert_frame_equal(found, expected, check_categorical=False)
    assert scalars(parts) == scalars(whole)


def test_a_resumed_run_that_counts_from_the_beginning_is_refused(tmp_path, says):
    """The schedule waits, so its first active step is not 0."""
    model, optimizer = made(lr=0.1)
    trained(History(model, parquet=tmp_path), model, optimizer, steps=4, first_step=8)
    with says(
        ValueError,
        "[history] resume=True, and the first step is 5, would drop all that was written; tell the number of the first "
        "step: amanda.scheduled(history, first_step=...)",
    ):
        trained(History(model, parquet=tmp_path, resume=True), model, optimizer, schedule=amanda.Schedule(wait=5))
    assert set(parquet(tmp_path)["step"]) == {8, 9, 10, 11}


def test_a_run_that_is_killed_leaves_files_that_can_be_read(preloaded, tmp_path):
    script = f"""
        import os, signal, torch, amanda
        from amanda.tools.history import History
        folder = {str(tmp_path)!r}
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        history = History(model, parquet=folder, tensorboard=folder, flush_seconds=0)
        with amanda.scheduled(history, steps=optimizer):
            for step in range(9):
                model(torch.ones(2, 2)).sum().backward()
                if step == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
    """
    done = preloaded.run("-c", textwrap.dedent(script), folder=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert set(parquet(tmp_path)["step"]) == {0, 1, 2, 3, 4}  # the one that has not ended is not there
    assert set(scalars(tmp_path)["parameters.norm/weight"]) == {0, 1, 2, 3, 4}


def test_a_run_that_fails_has_written_all_whole_steps(tmp_path):
    model, optimizer = made(lr=0.1)

    def fails():
        with amanda.scheduled(History(model, parquet=tmp_path, tensorboard=tmp_path), steps=optimizer):
            for _ in range(3):
                step_of(model, optimizer)
            model(torch.ones(1, 5))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fails()
    assert set(parquet(tmp_path)["step"]) == set(scalars(tmp_path)["parameters.norm/head.weight"]) == {0, 1, 2}


def test_a_folder_that_cannot_be_written_is_told(tmp_path, says):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "runs"
    with says(
        NotADirectoryError,
        f"[history] can't write to {str(path)!r}: Not a directory; what was written before can be read",
    ):
        History(parquet=path)
    model, optimizer = made(lr=0.1)
    history = History(model, parquet=tmp_path / "run", flush_seconds=0)
    with amanda.scheduled(history, steps=optimizer) as run:
        step_of(model, optimizer)
        (tmp_path / "run" / "series").rename(tmp_path / "read")
        (tmp_path / "run" / "series").touch()  # in its way
        with pytest.raises(OSError, match=r"^\[history\] can't write to '.*/run/series/rank=0': ") as raised:
            step_of(model, optimizer)
        assert "what was written before can be read" in str(raised.value)
        (tmp_path / "run" / "series").unlink()
        step_of(model, optimizer)  # also what could not be written
        assert run.step_number == 3
    assert set(pandas.read_parquet(tmp_path / "read")["step"]) == {0}
    assert set(parquet(tmp_path / "run")["step"]) == {1, 2}


def test_ranks_share_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    model, optimizer = made(lr=0.1)
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        history = History(model, parquet=tmp_path, tensorboard=tmp_path, limits=None)
        with amanda.scheduled(history, steps=optimizer):
            for step in range(3):
                history.log(late=2.0**step if rank else 1.0)
                step_of(model, optimizer)
        with pytest.raises(FileExistsError, match="has another run"):
            History(parquet=tmp_path)
        history = History(model, parquet=tmp_path, resume=True, limits=None)
        with amanda.scheduled(history, steps=optimizer, first_step=2):
            history.log(late=2.0**step if rank else 1.0)
            step_of(model, optimizer)
        assert scalars(tmp_path / f"rank{rank}")["late"] == {0: 1, 1: 1 + rank, 2: 1 + 3 * rank}
    found = {row.name: row for row in amanda.report(tmp_path / "series", by=["name", "quantity", "step"]).rows()}
    late = [found[f"late, value, {step}"] for step in range(3)]
    assert [(row.least, row.most, row.slowest_rank) for row in late] == [(1, 1, 0), (1, 2, 1), (1, 4, 1)]
    means = amanda.report(tmp_path / "series", by=["name", "quantity"], combine="mean").rows()
    assert [row.most for row in means if row.name == "late, value"] == [7 / 3]


def test_a_run_of_an_older_layout_is_not_resumed(tmp_path, says):
    (tmp_path / "history.json").write_text('{"version": 1, "created": 0}')
    model, optimizer = made(lr=0.1)
    history = History(model, parquet=tmp_path, resume=True)
    complaint = (
        f"[history] {str(tmp_path)!r} has a run in layout 1, and this version of Amanda writes 2; give a new folder"
    )
    with says(ValueError, complaint), amanda.scheduled(history, steps=optimizer, first_step=1):
        step_of(model, optimizer)


def test_files_for_tensorboard_need_no_torch(tmp_path):
    """As with TensorFlow, in an environment that has no PyTorch."""
    program = f"""
        import sys
        sys.modules["torch"] = None
        from pathlib import Path
        from amanda.tools.history.series import scalar
        from amanda.tools.history.tensorboard import TensorBoardFolder
        folder = TensorBoardFolder(Path({str(tmp_path)!r}))
        for step in range(3):
            folder.add(step, [(scalar("loss"), 2.0**step)], [], [])
        folder.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    assert scalars(tmp_path) == {"loss": {0: 1.0, 1: 2.0, 2: 4.0}}
