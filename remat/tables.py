"""Tables that read well in a notebook, in the published page and in a terminal: Markdown, aligned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Table(str):
    """A Markdown table: a string that a notebook renders."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return str(self)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Lay out rows as a Markdown table; columns that hold only numbers are set flush right.

    Args:
        header: one title a column, with its unit.
        rows: cells; numbers are printed as they come, so round or format them first.

    Raises:
        ValueError: if a row has another number of cells than the header.

    >>> table(["plan", "peak"], [["store all", 1026], ["every 32", 65]])
    | plan      | peak |
    |:----------|-----:|
    | store all | 1026 |
    | every 32  |   65 |
    """
    cells = [[str(cell) for cell in row] for row in rows]
    for row in cells:
        if len(row) != len(header):
            raise ValueError(f"rows must have {len(header)} cells like the header, got {len(row)}: {row}")
    columns = list(zip(header, *cells, strict=True))
    widths = [max(3, *map(len, column)) for column in columns]
    right = [bool(cells) and all(_is_number(cell) for cell in column[1:]) for column in columns]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if flush else cell.ljust(width)
            for cell, width, flush in zip(row, widths, right, strict=True)
        )
        return "| " + " | ".join(padded) + " |"

    rules = (
        "-" * (w + 1) + ":" if flush else ":" + "-" * (w + 1) for w, flush in zip(widths, right, strict=True)
    )
    return Table("\n".join([line(header), "|" + "|".join(rules) + "|", *map(line, cells)]))


def _is_number(cell: str) -> bool:
    """Whether a cell reads as a number, perhaps with a sign, a percent sign or a dash for 'none'."""
    try:
        float(cell.strip(" *").replace(",", "").replace("−", "-").rstrip("%×x").strip())
    except ValueError:
        return cell.strip() in {"—", ""}
    return True
