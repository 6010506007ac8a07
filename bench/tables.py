"""Results as tables: on the terminal, and as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.field import EMPTY, FIELD, OURS, OURS_OWN, OURS_SHARED
from bench.results import Results, Spread

TITLES = {entry.name: entry.title for entry in FIELD}


@dataclass(frozen=True)
class Grid:
    """A table, however it is shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def to_rich(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left", caption="\n".join(self.notes) or None)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        """For the documentation."""
        lines = [f"**{self.title}**", "", _line(self.columns)]
        lines.append(_line("---" if not number else "---:" for number in range(len(self.columns))))
        lines += [_line(row) for row in self.rows]
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(spread: Spread | None, digits: int = 0) -> str:
    """A median with its ends."""
    if spread is None:
        return "–"
    middle, low, high = (
        f"{number:,.{digits}f}" for number in (spread.median, spread.low, spread.high)
    )
    return f"{middle} ({low}–{high})" if spread.count > 1 else middle


def times(ours: float | None, other: float | None) -> str:
    """How many times one number is the other."""
    return f"{ours / other:.2f}" if ours and other else "–"


def ingest(results: Results) -> list[Grid]:
    """One table for each load."""
    grids = []
    for case in results.cases:
        ours = results.median(OURS, case, "rate")
        limit = results.median(EMPTY, case, "rate")
        rows = [
            [
                TITLES[name],
                shown(results.spread(name, case, "rate")),
                shown(results.spread(name, case, "p50_ms"), 1),
                shown(results.spread(name, case, "p99_ms"), 1),
                times(ours, rate),
                times(rate, limit),
            ]
            for name in results.contenders
            if (rate := results.median(name, case, "rate"))
        ]
        columns = ["", "requests/s", "p50 ms", "p99 ms", "Onceward ×", "of the limit"]
        grids.append(Grid(f"Ingest, {results.store}: {case}", columns, rows, _left_out(results)))
    return grids


def process(results: Results) -> list[Grid]:
    """One table for each workload."""
    grids = []
    for case in results.cases:
        own, shared = (results.median(name, case, "rate") for name in (OURS_OWN, OURS_SHARED))
        rows = [
            [
                TITLES[name],
                shown(results.spread(name, case, "rate")),
                times(own, rate),
                times(shared, rate),
            ]
            for name in results.contenders
            if (rate := results.median(name, case, "rate"))
        ]
        columns = ["", "jobs/s", "own ×", "shared ×"]
        grids.append(Grid(f"Process, {results.store}: {case}", columns, rows, _left_out(results)))
    return grids


def lone(results: Results) -> list[Grid]:
    """Ours beside a bare commit."""
    rows = [
        [title, shown(results.spread(name, "lone", "p50_ms"), 2),
         shown(results.spread(name, "lone", "p99_ms"), 2)]
        for name, title in ((OURS, TITLES[OURS]), ("bare", "INSERT and COMMIT, nothing else"))
    ]  # fmt: skip
    return [Grid("One request at a time, idle service", ["", "p50 ms", "p99 ms"], rows)]


def verify(results: Results) -> list[Grid]:
    """Ours beside a bare digest."""
    rows = [
        [title, shown(results.spread(name, "Stripe", "us"), 1)]
        for name, title in ((OURS, TITLES[OURS]), ("bare", "HMAC-SHA256, nothing else"))
    ]
    return [Grid("To verify a request of 600 bytes", ["", "µs"], rows)]


def latency(results: Results) -> list[Grid]:
    """One table for each pace."""
    grids = []
    for case in results.cases:
        rows = [
            [TITLES[name], shown(results.spread(name, case, "rate")),
             *(shown(results.spread(name, case, value), 1)
               for value in ("p50_ms", "p99_ms", "max_ms"))]
            for name in results.contenders
            if results.median(name, case, "p50_ms")
        ]  # fmt: skip
        title = f"From POST to committed, {results.store}: {case}"
        columns = ["", "events/s", "p50 ms", "p99 ms", "most ms"]
        grids.append(Grid(title, columns, rows, _left_out(results)))
    return grids


def growth(results: Results) -> list[Grid]:
    """The rates on a large ledger, against those on an empty one in the same seconds."""
    rows = []
    for case in results.cases:
        empty = f"empty, beside {case}"
        if empty not in results.cases:
            continue
        rows.append(
            [
                case,
                *(
                    cell
                    for value in ("ingest_rate", "process_rate")
                    for cell in (
                        shown(results.spread(OURS, empty, value)),
                        shown(results.spread(OURS, case, value)),
                        times(
                            results.median(OURS, case, value), results.median(OURS, empty, value)
                        ),
                    )
                ),
                *(
                    f"{results.median(OURS, empty, value):.0f} → "
                    f"{results.median(OURS, case, value):.0f}"
                    for value in ("receiver_peak_mb", "worker_peak_mb")
                ),
            ]
        )
    columns = ["ledger", "ingest/s, empty", "filled", "ratio", "jobs/s, empty", "filled", "ratio",
               "receiver, peak MB", "worker, peak MB"]  # fmt: skip
    return [Grid("Growth: Onceward on a large ledger", columns, rows)]


def crash(results: Results) -> list[Grid]:
    """Who loses, doubles or forgets."""

    def cell(name: str, case: str, value: str, of: str | None = None) -> str:
        found = results.median(name, case, value)
        if found is None:
            return ""
        total = results.median(name, case, of) if of else None
        return f"{found:,.0f} of {total:,.0f}" if total else f"{found:,.0f}"

    rows = [
        [
            TITLES[name],
            cell(name, "receiving", "missing", "acknowledged"),
            cell(name, "working", "missing", "jobs"),
            cell(name, "working", "doubled"),
            {"": "", "1": "no"}.get(cell(name, "again", "runs"), "yes"),
        ]
        for name in results.contenders
    ]
    columns = ["kill -9", "acknowledged, lost", "effects missing", "effects doubled",
               "runs again when sent again"]  # fmt: skip
    return [Grid(f"After a crash, {results.store}", columns, rows, _left_out(results))]


def _left_out(results: Results) -> list[str]:
    return [
        *(f"Not run: {TITLES[name]}: {reason}." for name, reason in results.not_run.items()),
        *(f"Failed: {label}: {reason}" for label, reason in results.failures.items()),
    ]


GRIDS = {
    "ingest": ingest,
    "lone": lone,
    "verify": verify,
    "process": process,
    "latency": latency,
    "growth": growth,
    "crash": crash,
}


def grids(every: Iterable[Results]) -> list[Grid]:
    """The tables of all that was measured."""
    return [grid for results in every for grid in GRIDS[results.measure](results)]
