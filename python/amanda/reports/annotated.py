"""AnnotatedResults: the methods by which tools show the source code of a program with the cost of each line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, cast

from amanda.driver.identity.cells import line_in_cell
from amanda.reports.arguments import whole_number
from amanda.reports.results import ByT, Results, RowT
from amanda.reports.rich_table import Column
from amanda.reports.sections import Listing, Section
from amanda.reports.source_files import is_library, line_of_code, matching, split_line
from amanda.reports.source_listing import SourceListing

PAGE_FILES = 10
PAGE_CONTEXT = 8  # lines of source code around those with rows
HEADINGS = {"line": "Lines", "module": "Modules", "op": "Operator types", "id": "Operators"}


class AnnotatedResults(Results[RowT, ByT]):
    """Results of tools that have rows by "line", "module", "op" and "id"::

        print(profile.annotate())
        profile.write_html("profile.html")

    Rows by "line" have fields `source` and `share`; the longest time comes first. Subclasses also define
    `_listing_columns` and `_costs`.
    """

    def annotate(
        self, file: str | os.PathLike[str] | None = None, *, context: int | None = 3, libraries: bool = False
    ) -> SourceListing:
        """The source code of the program with the cost of each line, for `print`, `rich.print` and notebooks.

        A line has the operators that it calls itself; in tools with rows by "user_line", also those that libraries call for
        it. Then library files list a part of the same time again.

        Arguments:
            file: a file, by its path or the end of its path. By default, all files of the user that have rows, longest
                time first.
            context: the number of lines to show around those with rows. None shows whole files.
            libraries: list all files, those of installed packages, too, each line with what it calls itself. They are
                listed anyway if no other file has rows.

        Raises:
            TypeError: `context` is not an integer.
            ValueError: no operator was called in that file; or several files have a path that ends so. `context` is
                negative.
        """
        _check_context(self._speaker, context)
        rows = self._lines() if libraries else self._user_lines()
        files = _by_file(rows)
        if file is not None:
            found = matching([*files], file)
            if not found:
                rows = self._lines()
                files = _by_file(rows)
                found = matching([*files], file)
            if len(found) != 1:
                which = ", ".join(map(line_in_cell, found or files)) or "none"
                what = (
                    "several files have such a path" if found else "no operator was called there; these files have some"
                )
                raise ValueError(f"[{self._speaker}] file= {os.fspath(file)!r}: {what}: {which}")
            return self._listing(rows, {found[0]: files[found[0]]}, context, "")
        own = files if libraries else {path: of for path, of in files.items() if not is_library(path)} or files
        return self._listing(rows, own, context, self._not_listed(rows, own))

    def write_html(self, path: str | os.PathLike[str], *, title: str = "", files: int = 10) -> None:
        """Writes a page: a summary, charts, the annotated source code, tables by line, module, operator type and id.

        One file that needs no network. It is written as a whole or not at all.

        Arguments:
            title: the title of the page; "Cost by line" by default.
            files: the number of source files: the user's first, then those of libraries, the longest time first.

        Raises:
            OSError: the file cannot be written.
        """
        from amanda.reports.html_page import HtmlPage  # here: it imports jinja2

        rows = self._lines()
        remarks = [remark for remark in self._remarks(cast(ByT, "line")) if remark]
        lines = "1 line" if len(rows) == 1 else f"{len(rows)} lines"
        page = HtmlPage(
            title or "Cost by line", "\n".join([f"{self._costs(rows, rows)} in operators, from {lines}", *remarks])
        )
        for section in [*self._charts(), *self._annotated(files)]:
            page.add(section)
        for by, heading in HEADINGS.items():
            page.add_results(heading, self, by)
        page.write(path)

    def figures(self) -> Sequence[Section]:
        return [*self._charts(), *self._annotated(PAGE_FILES)]

    def _annotated(self, files: int) -> Iterator[Listing]:
        """Source code for a page, of the user's files first."""
        rows = self._lines()
        own = {path: of for path, of in _by_file(self._user_lines()).items() if not is_library(path)}
        library = {path: of for path, of in _by_file(rows).items() if is_library(path)}
        listing = self._listing(rows, dict([*own.items(), *library.items()][:files]), PAGE_CONTEXT, "")
        headings = ["line", *(column.heading for column in listing.columns)]
        for file in listing.files:
            numbers = [str(line.number) if line.code is not None else "⋮" for line in file.lines]
            cells = [
                [number, *map(line.cell, listing.columns)] for number, line in zip(numbers, file.lines, strict=True)
            ]
            code, heat = [line.code or "" for line in file.lines], [listing.heat(line) for line in file.lines]
            missing = "" if file.readable else "source not available"
            yield Listing(file.heading, missing, headings, cells, code, heat, line_in_cell(file.path))

    # ---- what subclasses define -------------------------------------------------------------------------------------

    def _listing_columns(self, lines: Sequence[Any]) -> Sequence[Column]:
        """The columns for each of these rows by line, in addition to its number and its code."""
        raise NotImplementedError

    def _costs(self, lines: Sequence[Any], all_lines: Sequence[Any]) -> str:
        """The cost of some of all lines together, as text: "12.30 ms"."""
        raise NotImplementedError

    def _charts(self) -> Sequence[Section]:
        """The charts of a page, above the source code."""
        return []

    def _user_lines(self) -> Sequence[Any]:
        """Rows by lines of the user's code. A tool that does not know them has those by "line"."""
        return self._lines()

    # ---- the parts --------------------------------------------------------------------------------------------------

    def _lines(self) -> Sequence[Any]:
        return self.rows(cast(ByT, "line"))

    def _listing(
        self, rows: Sequence[Any], files: dict[str, dict[int, Any]], context: int | None, remark: str
    ) -> SourceListing:
        hottest = max((row.share for of in files.values() for row in of.values()), default=0) or 1
        listed = []
        for path, by_number in files.items():
            some = list(by_number.values())
            heading = f"{line_of_code(path)}: {self._with_share(some, rows)} in operators"
            listed.append((path, by_number, heading))
        return SourceListing(self._listing_columns(rows), listed, lambda row: row.share / hottest, context, remark)

    def _not_listed(self, rows: Sequence[Any], files: dict[str, dict[int, Any]]) -> str:
        if not rows:
            return "no operator was called"
        lines = [(row, split_line(row.source)) for row in rows]
        library = [row for row, place in lines if place and place[0] not in files]
        nowhere = [row for row, place in lines if not place]
        texts = []
        if library:
            most = f"most in {line_in_cell(library[0].source)} ({self._costs(library[:1], rows)})"
            texts.append(f"{self._with_share(library, rows)} in installed packages, {most}; libraries=True lists them")
        if nowhere:
            texts.append(f"{self._with_share(nowhere, rows)} outside of lines of Python")
        return "\n".join(f"not listed: {text}" for text in texts)

    def _with_share(self, some: Sequence[Any], rows: Sequence[Any]) -> str:
        return f"{self._costs(some, rows)}, {sum(row.share for row in some):.1%},"


def _by_file(rows: Sequence[Any]) -> dict[str, dict[int, Any]]:
    """Rows by file and line number; files in the order of the sums of their shares, the largest first."""
    files: dict[str, dict[int, Any]] = {}
    for row in rows:
        if place := split_line(row.source):
            files.setdefault(place[0], {})[place[1]] = row
    return dict(sorted(files.items(), key=lambda item: -sum(row.share for row in item[1].values())))


def _check_context(speaker: str, context: Any) -> None:
    complaint = f"[{speaker}] context= is how many lines to show around those with rows, 0 or more, got {context!r}"
    if isinstance(context, bool):
        raise ValueError(complaint)
    if context is not None:
        whole_number(context, complaint)
