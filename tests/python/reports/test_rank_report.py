"""amanda.report: what ranks have in a recording, by DuckDB, pandas and Dask, against numpy's figures."""

import builtins
import json
import subprocess
import sys

import amanda
import dask
import duckdb
import numpy
import pandas
import pyarrow.parquet
import pytest
import recordings
import torch
from amanda.reports import progress
from amanda.tools.profile import Profile
from repository import environment
from terminals import ERASED, Terminal, percents

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:pandas.errors.Pandas4Warning")  # of Dask's own code


def relation(folder):
    return duckdb.connect().read_parquet(f"{folder}/*/*.parquet", hive_partitioning=True)


def dask_frame(folder):
    import dask.dataframe

    return dask.dataframe.read_parquet(folder, split_row_groups=True)


READERS = {
    "folder": lambda folder: folder,
    "parent": lambda folder: folder.parent,
    "relation": relation,
    "pandas": pandas.read_parquet,
    "dask": dask_frame,
}


@pytest.fixture(autouse=True)
def in_threads():
    with dask.config.set(scheduler="threads"):
        yield


@pytest.mark.parametrize("reader", READERS)
def test_tables_are_those_of_numpy(tmp_path, reader):
    sums = recordings.write(tmp_path / "out" / "profile", 100_000, group=10_000)
    recordings.check(amanda.report(READERS[reader](tmp_path / "out" / "profile")), sums)


def test_a_terminal_shows_that_a_folder_is_read(tmp_path, monkeypatch):
    sums = recordings.write(tmp_path / "profile", 100_000, group=10_000)
    monkeypatch.setattr(progress, "FIRST", 0)
    monkeypatch.setattr(progress, "TICK", 0.001)
    for shown in (True, False):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal.file)
        recordings.check(amanda.report(tmp_path / "profile", progress=shown), sums)
        text = terminal.text()
        assert bool(percents(text)) == shown
        assert text.startswith("reading the recording " if shown else "")
        assert text.endswith(ERASED if shown else "")


ODD = pandas.DataFrame(
    {
        "rank": [0, 0, 0, 1, 1, 3],
        "name": ["a", "a", "b", "a", "b", "a"],
        "op_id": numpy.array([2**64 - 1, 2**64 - 2, 1, 2**64 - 1, 1, 2**64 - 1], "uint64"),
        "seconds": [1.0, 2.0, float("nan"), 4.0, 5.0, None],
        "calls": [1, 2, 3, 4, 5, 6],
    }
)


@pytest.fixture(params=["pandas", "relation", "dask"])
def odd(request):
    if request.param == "dask":
        import dask.dataframe

        return dask.dataframe.from_pandas(ODD, npartitions=3)
    return ODD if request.param == "pandas" else duckdb.connect().from_df(ODD)


def test_operators_at_their_places_are_kept_apart_and_missing_ranks_are_none(odd):
    found = amanda.report(odd)
    assert sorted((row.name, row.ranks, row.least, row.median, row.most, row.slowest_rank) for row in found.rows()) == [
        ("a", 1, 0, 0, 2, 0),
        ("a", 3, 1, 4, 6, 3),
        ("b", 2, 0, 3, 5, 1),
    ]
    assert [(row.name, row.rows, row.total) for row in found.rows("rank")] == [
        ("rank 0", 3, 6),
        ("rank 1", 2, 9),
        ("rank 3", 1, 6),
    ]
    assert "calls of 3 ranks" in str(found.table())


def test_means_leave_out_what_is_missing(odd):
    found = amanda.report(odd, by="name", value="seconds", combine="mean")
    rows = {row.name: (row.ranks, row.least, row.median, row.most) for row in found.rows()}
    assert rows == {"a": (3, 0, 1.5, 4), "b": (2, 0, 0, 5)}
    assert [row.total for row in found.rows("rank")] == [1.5, 4.5, 0]
    assert "mean seconds of 3 ranks" in str(found.table())
    both = amanda.report(odd, by=["name", "op_id"], value="seconds").rows()
    assert [(row.name, row.most) for row in both][:2] == [("b, 1", 5), (f"a, {2**64 - 1}", 4)]


def test_what_cannot_be_compared_is_refused(odd, tmp_path):
    columns = "rank, name, op_id, seconds, calls"
    for given, complaint in [
        ({"by": "module"}, f"there is no column 'module'; there are {columns}"),
        ({"by": []}, "by= names at least one column"),
        (
            {"by": ["name", "rank"]},
            'by= names what ranks have in common; found.table\\("rank"\\) has what each rank has',
        ),
        ({"value": "flops"}, f"there is no column 'flops'; value= is one of {columns}"),
        ({"value": "name"}, "value= is a column of numbers; 'name' has (str|VARCHAR|string)"),
        ({"combine": "median"}, 'combine= is "sum" or "mean", got \'median\''),
    ]:
        with pytest.raises(ValueError, match=r"^\[report\] " + complaint):
            amanda.report(odd, **given)
    with pytest.raises(TypeError, match=r"^\[report\] source is a folder, a DataFrame of .*, got dict$"):
        amanda.report({})


def test_folders_without_one_dataset_are_refused(tmp_path, monkeypatch):
    with pytest.raises(
        FileNotFoundError, match=r"^\[report\] '.*' has no files such as rank=0/part-0.parquet; amanda run"
    ):
        amanda.report(tmp_path)
    for name in ("b", "a"):
        recordings.write(tmp_path / name, 8)
    several = f"[report] {str(tmp_path)!r} has several datasets; give one: {tmp_path / 'a'}, {tmp_path / 'b'}"
    with pytest.raises(ValueError) as raised:
        amanda.report(tmp_path)
    assert str(raised.value) == several
    real = builtins.__import__
    monkeypatch.delitem(sys.modules, "duckdb")
    monkeypatch.setattr(
        builtins, "__import__", lambda name, *rest: real("no_duckdb" if name == "duckdb" else name, *rest)
    )
    with pytest.raises(
        ImportError, match=r"is a folder, and duckdb is not installed: pip install 'amanda-nn\[files\]'"
    ):
        amanda.report(tmp_path / "a")


def test_a_tool_without_rows_on_a_rank_is_a_rank_with_nothing(tmp_path):
    full, empty = Profile(), Profile()
    with amanda.apply(full):
        torch.ones(3).relu()
    for rank, profile in enumerate([full, empty]):
        profile.to_dataset(tmp_path, "op", rank=rank)
        profile.to_dataset(tmp_path, "op", rank=rank)  # once more: replaced
    calls = {row.name: (row.ranks, row.least, row.most) for row in amanda.report(tmp_path, value="calls").rows()}
    assert calls["aten::relu"] == (1, 0, 1)
    about = json.loads(pyarrow.parquet.read_schema(tmp_path / "rank=1" / "part-0.parquet").metadata[b"amanda"])
    assert (about["schema"], about["tool"], about["rank"]) == (1, "profile", 1)
    columns = [*full.to_pandas("op").columns, "host", "rank"]
    assert [*pandas.read_parquet(tmp_path).columns] == columns == [*dask_frame(tmp_path).columns]


CLUSTER = """
import resource, sys
import amanda, dask.dataframe, pickle, recordings
from distributed import Client, LocalCluster

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # MiB

if __name__ == "__main__":
    folder, limit = sys.argv[1:]
    with open(f"{folder}/sums", "rb") as file:
        sums = pickle.load(file)
    before = peak()
    recordings.check(amanda.report(f"{folder}/profile"), sums)
    duck = peak() - before
    sizes = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": limit}
    with LocalCluster(processes=True, dashboard_address=None, **sizes) as cluster, Client(cluster) as client:
        idle = client.run(peak)
        frame = dask.dataframe.read_parquet(f"{folder}/profile", split_row_groups=5)
        recordings.check(amanda.report(frame), sums)
        used = client.run(peak)
        print(duck, max(used[worker] - idle[worker] for worker in idle))
"""


@pytest.mark.long
@pytest.mark.parametrize("rows", [100_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_a_cluster_of_processes_and_duckdb_in_little_memory(tmp_path, rows):
    sums = recordings.write(tmp_path / "profile", rows)
    sums.dump(tmp_path / "sums")
    (tmp_path / "program.py").write_text(CLUSTER)
    done = subprocess.run(
        [sys.executable, "program.py", tmp_path, "800MiB"],
        cwd=tmp_path,
        env=environment(),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    in_memory = rows * 60 / 2**20  # MiB: two numbers and two texts of a row in pandas
    by_duckdb, by_worker = map(int, done.stdout.split())
    assert by_duckdb < 100 + in_memory / 4
    assert by_worker < 100 + in_memory / 4
