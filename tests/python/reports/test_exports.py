"""Files of rows: what CSV, JSON and Parquet hold, read by other programs."""

import csv
import dataclasses
import json
import os
import re
import sys
import threading

import pandas
import pytest
from amanda.reports.data_frame import fields_of
from amanda.reports.places import GroupBy
from amanda.reports.results import Grouping, Results


@dataclasses.dataclass
class Row:
    name: str
    op_id: int
    runs: int | None
    mean: float
    parts: dict[str, int]
    exact: bool = True

    @property
    def double(self):
        return 2 * self.mean


ROWS = [
    Row('a,"b"\nä', 2**64 - 1, 3, 0.1, {"x": 1}),
    Row("", 1, None, float("nan"), {}, False),
    Row("inf", 2, -1, float("inf"), {}),
]
FIELDS = ["name", "op_id", "runs", "mean", "parts", "exact", "double"]


class Found(Results[Row, GroupBy]):
    _speaker = "found"
    _groupings = {"op": Grouping((), fields_of(Row, double="float64"))}

    def __init__(self, rows):
        self.found = rows

    def _rows(self, by):
        return self.found


def test_csv_has_a_line_for_each_row(tmp_path):
    Found(ROWS).to_csv(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv", newline="", encoding="utf-8") as file:
        assert [*csv.reader(file)] == [
            FIELDS,
            ['a,"b"\nä', str(2**64 - 1), "3", "0.1", '{"x": 1}', "True", "0.2"],
            ["", "1", "", "", "{}", "False", ""],
            ["inf", "2", "-1", "", "{}", "True", ""],
        ]


def test_json_has_an_object_for_each_row_and_nothing_that_is_not_json(tmp_path):
    Found(ROWS).to_json(tmp_path / "rows.json", "op")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    rows = json.loads((tmp_path / "rows.json").read_text(), parse_constant=refuse)
    assert [list(row) for row in rows] == [FIELDS] * 3
    assert rows[0] == dict(zip(FIELDS, ['a,"b"\nä', 2**64 - 1, 3, 0.1, {"x": 1}, True, 0.2], strict=True))
    assert [row["mean"] for row in rows] == [0.1, None, None]


def test_parquet_has_the_columns_and_dtypes_of_to_pandas(tmp_path):
    found = Found(ROWS)
    found.to_parquet(tmp_path / "rows.parquet")
    frame, expected = pandas.read_parquet(tmp_path / "rows.parquet"), found.to_pandas()
    assert frame["parts"].tolist() == ['{"x": 1}', "{}", "{}"]
    pandas.testing.assert_frame_equal(frame.drop(columns="parts"), expected.drop(columns="parts"))
    assert frame["op_id"].tolist() == [2**64 - 1, 1, 2]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_tool_without_rows_writes_a_file_without_rows(tmp_path, kind):
    getattr(Found([]), f"to_{kind}")(tmp_path / "rows")
    frame = {"csv": pandas.read_csv, "json": pandas.read_json, "parquet": pandas.read_parquet}[kind](tmp_path / "rows")
    assert len(frame) == 0
    assert kind == "json" or frame.columns.tolist() == FIELDS


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, kind):
    (tmp_path / "rows").write_text("old")
    broken = Found([object()])
    with pytest.raises(AttributeError):
        getattr(broken, f"to_{kind}")(tmp_path / "rows")
    missing = re.escape(f"No such file or directory: '{tmp_path}/missing/rows'")
    with pytest.raises(FileNotFoundError, match=f"{missing}$"):
        getattr(Found(ROWS), f"to_{kind}")(tmp_path / "missing" / "rows")
    with pytest.raises(ValueError, match=r'\[found\] by= is "op", got \'line\''):
        getattr(Found(ROWS), f"to_{kind}")(tmp_path / "rows", "line")
    assert (tmp_path / "rows").read_text() == "old"
    assert os.listdir(tmp_path) == ["rows"]


def test_a_link_stays_one_and_a_pipe_is_written_to(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    Found(ROWS).to_csv(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    text = (tmp_path / "rows").read_text()
    assert text.startswith("name,op_id,")
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    Found(ROWS).to_csv(pipe)
    reader.join()
    assert read == [text]
    assert pipe.is_fifo()


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_parquet_without_its_packages_says_what_to_install(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ImportError, match=r"\[found\] to_parquet needs pandas and pyarrow: pip install 'amanda-nn\[files\]'"
    ):
        Found(ROWS).to_parquet(tmp_path / "rows")
