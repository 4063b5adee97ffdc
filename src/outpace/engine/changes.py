"""Rows that were filled and pages that were added, until the next forward tells the device."""

from __future__ import annotations

from collections.abc import Sequence

from outpace.types import Changes, RowSettings


class PendingChanges:
    """What the device has not been told."""

    def __init__(self) -> None:
        self._rows: list[RowSettings] = []
        self._pages: list[tuple[int, int, int]] = []

    def fill(self, settings: RowSettings) -> None:
        """A request enters a row."""
        self._rows.append(settings)

    def append(self, row: int, first: int, pages: Sequence[int]) -> None:
        """A row's table grows by pages from column `first` on."""
        self._pages += [(row, first + i, page) for i, page in enumerate(pages)]

    def forget(self, row: int) -> None:
        """The row is empty again: what was to be told of it must not meet what its next owner brings."""
        self._rows = [settings for settings in self._rows if settings.row != row]
        self._pages = [new for new in self._pages if new[0] != row]

    def flush(self) -> Changes:
        """All of it, which is then told."""
        rows, columns, pages = zip(*self._pages, strict=True) if self._pages else ((), (), ())
        changes = Changes(rows=tuple(self._rows), page_rows=rows, page_columns=columns, pages=pages)
        self._rows, self._pages = [], []
        return changes
