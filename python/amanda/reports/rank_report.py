"""report: compares ranks in recordings that need not fit into memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amanda.reports.arguments import check_choice
from amanda.reports.progress import Progress
from amanda.reports.rank_rows import VALUES, Combine, Part, RankRows, first_value
from amanda.reports.run_datasets import dataset_of

if TYPE_CHECKING:
    import dask.dataframe
    import duckdb
    import pandas

NEEDED = (
    "duckdb is not installed: pip install 'amanda-nn[files]'; or read it yourself and give a DataFrame of pandas or "
    "Dask"
)


def report(
    source: str | os.PathLike[str] | pandas.DataFrame | duckdb.DuckDBPyRelation | dask.dataframe.DataFrame,
    by: str | Sequence[str] | None = None,
    *,
    value: str | None = None,
    combine: Combine = "sum",
    progress: bool = True,
) -> RankRows:
    """Compares the ranks of a recording, as `amanda.distributed.gather` compares those of a running program::

        found = amanda.report("results")  # of amanda run --format parquet --out results
        print(found.table(top=10))  # how ranks differ, by name
        print(found.table("rank"))
        print(amanda.report("runs/1/series", by=["name", "quantity", "step"]).table(top=10))

    Rows are summed for each name and rank where they are: by DuckDB for a folder or a relation, which reads it in parts and
    with all cores; by Dask on its workers; by pandas. Only the sums come back, so memory grows with names times ranks, not
    with rows. Medians are those of the ranks' sums, and exact.

    Arguments:
        source: with columns `rank` and, if it is known, `host`, and a row for each name or for many of them. A folder is a
            dataset as `Results.to_dataset` writes it. In the folder of a run, it is the first one that `amanda run`
            wrote: the tool's default grouping. Any other folder with several datasets is an error.
        by: columns whose values name what is compared. By default, `name`, and `op_id` if there is one.
        value: the column to compare. By default, the first that exists of device_ns, total_ns, host_ns, flops, calls,
            value. Missing values and NaN count as 0.
        combine: "sum", or "mean" of the rows that have a value, for values whose sum makes no sense, such as norms.
        progress: a bar on standard error while DuckDB reads, if that is a terminal; see `amanda.reports.progress.Progress`.

    Returns:
        `RankRows`, with `rows`, `table`, `to_pandas` and files, by "name" and by "rank".

    Raises:
        FileNotFoundError: the folder has no dataset.
        ImportError: a folder is given, and DuckDB is not installed.
        TypeError: the source is something else.
        ValueError: there is no such column, or it has no numbers; or a folder has several datasets.
    """
    hosts: dict[int, str] = {}
    shown: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if isinstance(source, (str, os.PathLike)):
        source, hosts, percent = _relation(Path(source))
        shown = Progress("reading the recording", 100, show=progress, done=percent)
    engine = _ENGINES.get(next((kind for kind in map(_package, type(source).__mro__) if kind in _ENGINES), ""))
    if engine is None:
        raise TypeError(
            "[report] source is a folder, a DataFrame of pandas or Dask, or a relation of DuckDB, "
            f"got {type(source).__name__}"
        )
    check_choice("[report] combine=", combine, ("sum", "mean"))
    columns = [str(name) for name in source.columns]
    names = _names(columns, by)
    value = _value(columns, value)
    parts = []
    with shown:
        for *key, rank, host, rows, known, total in engine(source, names, value, "host" in columns):
            label = str(key[0]) if by is None else ", ".join(map(str, key))
            parts.append(Part(tuple(key), label, int(rank), int(rows), int(known), total or 0))
            hosts[int(rank)] = host or hosts.get(int(rank), "")
    return RankRows(parts, hosts, value, combine)


# ---- what is asked for -----------------------------------------------------------------------------------------------


def _names(columns: Sequence[str], by: str | Sequence[str] | None) -> list[str]:
    names = (
        [name for name in ("name", "op_id") if name in columns] if by is None else [by] if isinstance(by, str) else by
    )
    if by is not None and not names:
        raise ValueError("[report] by= names at least one column")
    missing = [name for name in ["rank", *(names or ["name"])] if name not in columns]
    if missing:
        raise ValueError(f"[report] there is no column {missing[0]!r}; there are {', '.join(columns)}")
    if {"rank", "host"} & {*names}:
        raise ValueError('[report] by= names what ranks have in common; found.table("rank") has what each rank has')
    return [*dict.fromkeys(names)]


def _value(columns: Sequence[str], value: str | None) -> str:
    found = first_value(columns, value)
    if found is None:
        asked = f"no column {value!r}" if value is not None else f"none of the columns {', '.join(VALUES)}"
        raise ValueError(f"[report] there is {asked}; value= is one of {', '.join(columns)}")
    return found


def _no_numbers(value: str, kind: Any) -> ValueError:
    return ValueError(f"[report] value= is a column of numbers; {value!r} has {kind}")


# ---- where rows are --------------------------------------------------------------------------------------------------


def _relation(folder: Path) -> tuple[duckdb.DuckDBPyRelation, dict[int, str], Callable[[], float]]:
    """All files of a dataset, the ranks that it has, also those without rows, and the percentage that a query has read."""
    dataset, ranks = dataset_of(folder)
    try:
        import duckdb
    except ImportError as error:
        raise ImportError(f"[report] {os.fspath(folder)!r} is a folder, and {NEEDED}") from error
    files = [str(path) for path in sorted(dataset.glob("rank=*/*.parquet"))]
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")  # measured, not shown
    relation = connection.read_parquet(files, hive_partitioning=True, union_by_name=True)
    return relation, dict.fromkeys(ranks, ""), lambda: max(connection.query_progress(), 0.0)


# Each yields (*names, rank, host, rows, known, total).


def _by_duckdb(relation: Any, names: Sequence[str], value: str, has_host: bool) -> Iterable[tuple[Any, ...]]:
    kind = str(relation.types[relation.columns.index(value)])
    if not re.fullmatch(r"\w*INT(EGER)?|FLOAT|DOUBLE|DECIMAL.*", kind):
        raise _no_numbers(value, kind)
    keys, figure = ", ".join(map(_quoted, [*names, "rank"])), _quoted(value)
    condition = f"NOT isnan({figure})" if kind in ("DOUBLE", "FLOAT") else f"{figure} IS NOT NULL"
    known = f"FILTER (WHERE {condition})"
    host = "any_value(host)" if has_host else "NULL"
    yield from relation.aggregate(f"{keys}, {host}, count(*), count(*) {known}, sum({figure}) {known}", keys).fetchall()


def _by_groupby(frame: Any, names: Sequence[str], value: str, has_host: bool) -> Iterable[tuple[Any, ...]]:
    """pandas and Dask have the same methods. Both leave out NaN."""
    kind = frame.dtypes[value]
    if kind.kind not in "iuf":
        raise _no_numbers(value, kind)
    groups = frame.groupby([*names, "rank"], observed=True, dropna=False)
    table = groups.agg({value: ["size", "count", "sum"], **({"host": ["first"]} if has_host else {})})
    if hasattr(table, "compute"):
        table = table.compute()
    for key, rows, known, total, *host in table.itertuples(name=None):
        yield *(None if part != part else part for part in key), host[0] if host else "", rows, known, total


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


_ENGINES = {"pandas": _by_groupby, "dask": _by_groupby, "duckdb": _by_duckdb, "_duckdb": _by_duckdb}
