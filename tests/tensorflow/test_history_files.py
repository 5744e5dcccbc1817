"""Files of History on TensorFlow. The test environment has neither pyarrow nor tensorboard: where they are missing, a
message says so; where they are there, their readers find the rows."""

from __future__ import annotations

import importlib.util

import amanda
import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from amanda.cli.main import main
from amanda.tools.history import History

OPTIONS = {"parquet": "pyarrow", "tensorboard": "tensorboard"}


def needs(library):
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def lacks(library):
    return pytest.mark.skipif(importlib.util.find_spec(library) is not None, reason=f"{library} is installed")


@pytest.mark.parametrize(("option", "library"), [pytest.param(*each, marks=lacks(each[1])) for each in OPTIONS.items()])
def test_a_library_that_is_missing_is_named(option, library, tmp_path, says):
    with says(ImportError, f"[history] {option}= needs {library}: pip install 'amanda-nn[files]'"):
        History(**{option: tmp_path / "run"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("option", "library"), [pytest.param(*each, marks=lacks(each[1])) for each in OPTIONS.items()])
def test_the_command_names_it_before_the_program_runs(option, library, tmp_path, capsys):
    (tmp_path / "p.py").write_text("print('it ran')\n")
    with pytest.raises(SystemExit) as ended:
        main(["watch", f"--{option}", str(tmp_path / "run"), str(tmp_path / "p.py")])
    told = capsys.readouterr()
    assert ended.value.code not in (0, None)
    assert f"needs {library}" in f"{told.out}{told.err}{ended.value.code}"
    assert "it ran" not in told.out


def trained(**files):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    history = History(model, find_loss=True, histograms=True, on_alarm=print, **files)
    with amanda.scheduled(history, steps=model.optimizer):
        model.fit(np.ones((12, 3)), np.ones((12, 1)), batch_size=4, verbose=0)
    return history


@needs("pyarrow")
def test_parquet_files_have_what_rows_have(tmp_path):
    history = trained(parquet=tmp_path)
    frame = pandas.read_parquet(tmp_path / "series").drop(columns=["host", "rank"])
    assert list(frame.itertuples(index=False, name=None)) == [
        (row.step, row.tool, row.name, row.op_id or 0, row.module_path, row.source, row.detail, row.quantity, row.value)
        for row in history.rows("step")
    ]
    histograms = pandas.read_parquet(tmp_path / "histograms")
    sizes = {"gradients": 0, "updates": 0}
    for one in histograms[histograms["step"] == 2].itertuples():
        sizes[one.quantity] += sum(one.counts)
    assert sizes == {"gradients": 3 * 2 + 2 + 2 + 1, "updates": 3 * 2 + 2 + 2 + 1}


@needs("tensorboard")
def test_tensorflow_itself_reads_the_files_for_tensorboard(tmp_path):
    history = trained(tensorboard=tmp_path)
    (path,) = tmp_path.glob("events.*")
    found = {
        event.step: value.simple_value
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "loss"
    }
    losses = {row.step: row.value for row in history.rows("step") if (row.tool, row.name) == ("scalars", "loss")}
    assert len(losses) == 3
    assert found == pytest.approx(losses, rel=1e-6)
