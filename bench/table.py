"""How a benchmark prints: a table whose rows carry what was measured, the aim, and whether it was met."""

from __future__ import annotations

from collections.abc import Sequence


class Table:
    """Columns as wide as their widest cell; numbers on the right, words on the left."""

    def __init__(self, *columns: str) -> None:
        self._rows: list[Sequence[str]] = [columns]

    def add(self, *cells: str) -> None:
        if len(cells) != len(self._rows[0]):
            raise ValueError(f"{len(cells)} cells for {len(self._rows[0])} columns")
        self._rows.append(cells)

    def show(self) -> None:
        widths = [max(len(row[place]) for row in self._rows) for place in range(len(self._rows[0]))]
        for row in self._rows:
            cells = [
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())


def verdict(measured: float, aim: float) -> str:
    return "met" if measured <= aim else "MISSED"


def micros(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


def millis(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def times(ratio: float) -> str:
    return f"{ratio:.2f}×"
