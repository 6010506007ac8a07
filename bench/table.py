"""A table for the terminal and for Markdown, and the format of its cells."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from rich.table import Table as RichTable

from bench.results import Spread


@dataclass(frozen=True)
class Table:
    """A table with a caption: the measurement, the durability and the concurrency."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: Sequence[str] = ()
    text_columns: int = 1
    """Leading columns that are text; the others are numbers, aligned right."""

    def to_rich(self) -> RichTable:
        """Return the table for the terminal."""
        caption = "\n".join(line for line in (self.caption, *self.notes) if line)
        table = RichTable(
            title=self.title, title_justify="left", caption=caption, caption_justify="left"
        )
        for number, column in enumerate(self.columns):
            is_text = number < self.text_columns
            table.add_column(column, justify="left" if is_text else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """Return the table for the documentation."""
        parts = [f"**{self.title}.** {self.caption}".rstrip(), "", _markdown_row(self.columns)]
        numbers = len(self.columns) - self.text_columns
        parts.append(_markdown_row(["---"] * self.text_columns + ["---:"] * numbers))
        parts += [_markdown_row(row) for row in self.rows]
        for note in self.notes:
            parts += ["", note]
        return "\n".join(parts)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def format_spread(spread: Spread | None, digits: int = 0, limit: float = inf) -> str:
    """Format a median with its range. A value that reaches the limit was not measured further."""
    if spread is None:
        return "–"
    middle, low, high = (
        f"{number:,.{digits}f}" if number < limit else f"over {limit:,.0f}"
        for number in (spread.median, spread.low, spread.high)
    )
    return middle if low == high else f"{middle} ({low}–{high})"
