"""Results: the methods by which every tool hands out what it found."""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Never, TypeVar

from amanda.core import keywords
from amanda.reports import exports, notebook
from amanda.reports.arguments import check_choice
from amanda.reports.data_frame import data_frame
from amanda.reports.rich_table import Column, rich_table

if TYPE_CHECKING:
    import pandas

    from amanda.reports.sections import Section
    from amanda.reports.table import Table

RowT = TypeVar("RowT")
ByT = TypeVar("ByT", bound=str)


class Grouping(NamedTuple):
    """The form of the rows of one `by=`."""

    columns: Sequence[Column]  # of tables
    fields: Mapping[str, str | None]  # the columns of data frames, with their dtypes; pandas finds a dtype of None
    summed: Callable[[Sequence[Any]], Any] | None = None  # makes one row of many: tables have a total then


class Results(Generic[RowT, ByT]):
    """The common methods of tools with results: `rows`, `table`, `to_pandas`, `reset`, and files for programs::

        profile = Profile()
        with amanda.apply(profile):
            model(x)
        print(profile.table("module", sort="calls", top=10))

    The groupings of each tool, the values of `by`, are in its docstring and in its type `GroupBy`. Results accumulate
    over all scopes and threads in which the tool is used, until `reset`.

    Subclasses define `_speaker`, `_groupings`, `_rows` and `reset`. Put this class before `Tool` in the list of bases.
    """

    _speaker: ClassVar[str]  # the tool's name in messages
    _groupings: ClassVar[Mapping[str, Grouping]]  # the first is the default

    def rows(self, by: ByT | None = None) -> list[RowT]:
        """The tool's results so far, as a list of dataclasses.

        Arguments:
            by: the object of each row, such as "op", "module", "line" or "id" (one operator at its place in the
                program). By default, the tool's first grouping.

        Raises:
            ValueError: the tool has no such grouping; the message lists those it has.
        """
        return self._rows(self._checked(by))

    def table(
        self, by: ByT | None = None, top: int | None = None, *, sort: str | None = None, **unknown: Never
    ) -> Table:
        """`rows` as a table for `rich.print`, `print` and notebooks.

        Names are never broken inside a part: where the terminal is narrow, they go on in the next line after a dot, or
        are shortened from the left ("…attention.output"). If the columns of numbers need too much room, the last ones
        are left out, and a line below the table names them. In notebooks everything is shown.

        Arguments:
            by: as in `rows`.
            sort: the column to sort by, as `to_pandas` names it: numbers largest first, names from A to Z, missing
                values last. By default, the order of `rows`.
            top: the number of rows to show; one more line stands for the others. By default, all rows are shown.

        Raises:
            TypeError: `top` is not an integer, or there is another keyword.
            ValueError: there is no such grouping or column, or `top` is negative.
        """
        for name in unknown:
            keywords.refuse(f"[{self._speaker}] table", name, Results.table)
        by = self._checked(by)
        rows, grouping = self._sorted(by, sort), self._groupings[by]
        columns, remarks = self._columns(by, rows), "\n".join(filter(None, self._remarks(by)))
        return rich_table(self._speaker, columns, rows, top=top, caption=remarks, summed=grouping.summed, sort=sort)

    def answer(self) -> str:
        """One or two sentences that answer what the tool is for, with evidence; "" if it has none. Commands print it above
        its table."""
        return ""

    def to_pandas(self, by: ByT | None = None) -> pandas.DataFrame:
        """`rows` as a data frame with a column for each field that the rows have in common; None is a missing value.

        Arguments:
            by: as in `rows`.

        Raises:
            ImportError: pandas is not installed.
            ValueError: there is no such grouping.
        """
        by = self._checked(by)
        return data_frame(self._speaker, self._rows(by), self._groupings[by].fields)

    def to_csv(self, path: str | os.PathLike[str], by: ByT | None = None) -> None:
        """Writes `rows` as CSV, with the columns of `to_pandas`. A missing value is empty, a list or dict is JSON.

        The file is written as a whole or not at all; so are those of `to_json` and `to_parquet`.

        Arguments:
            by: as in `rows`.

        Raises:
            OSError: the file cannot be written.
            ValueError: there is no such grouping.
        """
        by = self._checked(by)
        exports.write_csv(path, self._rows(by), self._groupings[by].fields)

    def to_json(self, path: str | os.PathLike[str], by: ByT | None = None) -> None:
        """Writes `rows` as a JSON array of objects with the columns of `to_pandas`. Missing, infinite and NaN are null.

        Arguments, errors: as `to_csv`.
        """
        by = self._checked(by)
        exports.write_json(path, self._rows(by), self._groupings[by].fields)

    def to_parquet(self, path: str | os.PathLike[str], by: ByT | None = None) -> None:
        """Writes `rows` as Parquet, with the columns and dtypes of `to_pandas`; a list or dict is a text, of JSON.

        Arguments: as `to_csv`.

        Raises:
            ImportError: pandas or pyarrow is not installed.
            OSError: the file cannot be written.
            ValueError: there is no such grouping.
        """
        by = self._checked(by)
        exports.write_parquet(self._speaker, path, self._rows(by), self._groupings[by].fields)

    def to_dataset(self, folder: str | os.PathLike[str], by: ByT | None = None, *, rank: int | None = None) -> None:
        """Writes `rows` as this rank's part of a Parquet dataset, for `amanda.report` and other programs::

            profile.to_dataset("results/profile")  # in every rank
            print(amanda.report("results/profile").table())

        The file is ``folder/rank=3/part-0.parquet``; one that is there is replaced. Its columns are those of `to_parquet`,
        and `host`; readers of datasets add `rank`.

        Arguments:
            by: as in `rows`.
            rank: the rank of this process. By default, that of `torch.distributed`, or of the environment variable
                RANK, or else 0.

        Errors: as `to_parquet`.
        """
        by = self._checked(by)
        exports.write_dataset(self._speaker, folder, self._rows(by), self._groupings[by].fields, rank)

    def groupings(self) -> list[ByT]:
        """The possible values of `by`; the first is the default."""
        return typing.cast(list[ByT], list(self._groupings))

    def figures(self) -> Sequence[Section]:
        """The tool's charts and listings, which a page shows above its tables. They are those of
        `amanda.reports.sections`."""
        return []

    def sortable(self, by: ByT | None = None) -> list[str]:
        """The possible values of `sort` of `table`.

        Raises:
            ValueError: there is no such grouping.
        """
        fields = self._groupings[self._checked(by)].fields
        return [name for name, dtype in fields.items() if dtype != "object"]

    def reset(self) -> None:
        """Forgets all results, also inside a scope: afterwards the tool finds what a new one would find. Options stay.

        Tools call `Tool.reset_evidence` in it.
        """
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """For notebooks: the answer, and the first rows of the first table."""
        by = self._checked(None)
        table = self.table(by, notebook.TOP)
        shown = table._repr_html_() if table.rows else notebook.remark("no rows so far")
        others = ", ".join(f'.table("{other}")' for other in self.groupings()[1:])
        more = notebook.remark(f"also {others}") if table.rows and others else ""
        title = notebook.heading(f"{type(self).__name__} by {by}")
        return notebook.together([title, notebook.text(self.answer()), shown, more])

    def _rows(self, by: ByT) -> list[RowT]:
        """The rows of one of `_groupings`, in their natural order."""
        raise NotImplementedError

    def _columns(self, by: ByT, rows: Sequence[RowT]) -> Sequence[Column]:
        return self._groupings[by].columns

    def _remarks(self, by: ByT) -> Sequence[str]:
        """Sentences below a table."""
        return ()

    def _checked(self, by: ByT | None) -> ByT:
        known = list(self._groupings)
        if by is None:
            return typing.cast(ByT, known[0])
        check_choice(f"[{self._speaker}] by=", by, known)
        return by

    def _sorted(self, by: ByT, sort: str | None) -> Sequence[RowT]:
        sortable = self.sortable(by)
        if sort is not None and sort not in sortable:
            raise ValueError(f'[{self._speaker}] sort= by "{by}" is {", ".join(sortable)}; got {sort!r}')
        rows = self._rows(by)
        if sort is None:
            return rows
        known = [row for row in rows if getattr(row, sort) is not None]
        unknown = [row for row in rows if getattr(row, sort) is None]
        texts = bool(known) and isinstance(getattr(known[0], sort), str)
        return sorted(known, key=lambda row: getattr(row, sort), reverse=not texts) + unknown
