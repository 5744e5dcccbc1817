"""A recording of several ranks, of any size, and what is in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from amanda.distributed import RankRows

RANKS = 4
NAMES = [f"layer.{i}.linear" for i in range(50)]
HOSTS = [f"node{rank // 2}" for rank in range(RANKS)]


def write(folder: Path, rows: int, group: int = 100_000) -> np.ndarray:
    """Writes a dataset with so many rows, and returns the sums of `total_ns` by name and rank: integers, exact."""
    random = np.random.default_rng(0)
    sums = np.zeros((len(NAMES), RANKS), np.int64)
    for rank in range(RANKS):
        path = folder / f"rank={rank}" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        schema = pa.schema({"step": pa.int64(), "name": pa.string(), "total_ns": pa.int64(), "host": pa.string()})
        with pq.ParquetWriter(path, schema) as writer:
            for start in range(0, rows // RANKS, group):
                count = min(group, rows // RANKS - start)
                places = random.integers(0, len(NAMES) - (rank == 2), count)  # rank 2 has no rows of the last one
                times = random.integers(1_000, 1_000_000 * (rank + 1), count)
                np.add.at(sums, (places, rank), times)
                columns = [
                    pa.array(np.arange(start, start + count) // len(NAMES)),
                    pa.DictionaryArray.from_arrays(pa.array(places), pa.array(NAMES)).cast(pa.string()),
                    pa.array(times),
                    pa.array([HOSTS[rank]]).take(pa.array(np.zeros(count, np.int64))),
                ]
                writer.write_table(pa.table(columns, schema=schema))
    return sums


def check(found: RankRows, sums: np.ndarray) -> None:
    """The tables have what numpy makes of the sums."""
    rows = {row.name: row for row in found.rows()}
    assert set(rows) == set(NAMES)
    figures = np.array([[rows[n].least, rows[n].median, rows[n].most, rows[n].slowest_rank] for n in NAMES])
    expected = [sums.min(1), np.median(sums, 1), sums.max(1), sums.argmax(1)]
    np.testing.assert_array_equal(figures, np.stack(expected, 1))
    imbalance = [rows[name].imbalance for name in NAMES]
    np.testing.assert_allclose(imbalance, sums.max(1) / sums.mean(1) - 1, rtol=1e-12)
    assert [row.most for row in found.rows()] == sorted(sums.max(1), reverse=True)
    assert rows[NAMES[-1]].ranks == RANKS - 1
    assert [(row.rank, row.host, row.total) for row in found.rows("rank")] == [
        (rank, HOSTS[rank], sums[:, rank].sum()) for rank in range(RANKS)
    ]
