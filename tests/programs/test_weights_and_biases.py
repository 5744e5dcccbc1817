"""A history in a run of Weights & Biases: what its offline file has."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import amanda
import pytest
import torch
import wandb
from amanda.tools.history import History
from amanda.tools.history.parameter_histograms import Histogram
from amanda.tools.history.wandb import _of_wandb as of_wandb
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore


def records(folder: Path) -> list[wandb_internal_pb2.Record]:
    """Those in the file of the run in a folder, in order."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    store, found = DataStore(), []
    store.open_for_scan(str(file))
    with closing(store):
        while (data := store.scan_data()) is not None:
            found.append(wandb_internal_pb2.Record.FromString(data))
    assert found[-1].WhichOneof("record_type") == "exit"
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    """What was logged, by name."""
    history = [record.history for record in records(folder) if record.WhichOneof("record_type") == "history"]
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in one.item} for one in history
    ]


def trained(folder: Path, **options: Any) -> tuple[History, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    with wandb.init(mode="offline", dir=folder, project="history", settings=settings) as run:
        history = History(model, wandb=run, **options)
        with amanda.scheduled(history, schedule=amanda.Schedule(every=2)) as steps:
            for number in range(5):
                loss = model(torch.ones(3, 4)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                history.log(loss=loss)
                run.log({"own": number})
                steps.step()
    wandb.teardown()  # run.finish() returns before the last block of the file is written
    return history, [parameter.detach() for parameter in model.parameters()]


def test_all_values_are_logged_with_their_steps(tmp_path: Path) -> None:
    history, _ = trained(tmp_path)
    found = rows(tmp_path)
    ours = [row for row in found if "amanda/step" in row]
    assert [row["amanda/step"] for row in ours] == [0, 2, 4]
    assert [row["own"] for row in found if "own" in row] == [0, 1, 2, 3, 4]
    for row in history.rows("step"):
        logged = next(one for one in ours if one["amanda/step"] == row.step)
        if (row.tool, row.name) == ("parameters", "weight"):
            assert logged[f"amanda/parameters.{row.quantity}/weight"] == pytest.approx(row.value)
    assert {"amanda/loss", "amanda/parameters.update_ratio/weight", "amanda/parameters.gradient_norm/weight"} <= {
        *ours[0]
    }


def test_the_axis_is_the_step(tmp_path: Path) -> None:
    trained(tmp_path)
    metrics = [record.metric for record in records(tmp_path) if record.WhichOneof("record_type") == "metric"]
    steps = {metric.name: metric.step_metric for metric in metrics}
    assert "amanda/step" in steps
    assert steps["amanda/loss"] == "amanda/step"


def test_histograms_have_edges_and_counts(tmp_path: Path) -> None:
    trained(tmp_path, histograms=True)
    ours = [row for row in rows(tmp_path) if "amanda/step" in row]
    for name in "amanda/parameters.gradients/weight", "amanda/parameters.updates/weight":
        assert [row[f"{name}/_type"] for row in ours] == ["histogram"] * 3
        assert [sum(row[f"{name}/values"]) for row in ours] == [8] * 3
        assert all(len(row[f"{name}/bins"]) == len(row[f"{name}/values"]) + 1 for row in ours)


@pytest.mark.parametrize("bins", [512, 513, 1027, 2600])
def test_a_histogram_of_many_bins_is_made_coarser(bins: int) -> None:
    edges, counts = tuple(float(edge) for edge in range(bins + 1)), tuple(range(1, bins + 1))
    made = of_wandb(Histogram("weight", "updates", edges, counts, 0, 0.0, float(bins), 0.0, 0.0))
    assert 256 < len(made.histogram) <= 512
    assert (made.bins[0], made.bins[-1]) == (0, bins)
    for count, first, end in zip(made.histogram, made.bins, made.bins[1:], strict=False):
        assert count == sum(counts[int(first) : int(end)])


def test_the_training_is_the_same(tmp_path: Path) -> None:
    _, weights = trained(tmp_path / "with")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    for _ in range(5):
        model.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert all(map(torch.equal, weights, model.parameters()))


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(TypeError, match=r"\[history\] wandb= is a run, as wandb.init\(\) returns it, got 'offline'"):
        History(wandb="offline")
