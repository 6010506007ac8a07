"""Results as tables, for the terminal and for Markdown."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from rich.table import Table as RichTable

from bench.deliveries import ACCOUNTS, LOADS, UNIQUE
from bench.registry import (
    BY_NAME,
    CONCURRENCY,
    EMPTY_ENDPOINT,
    ONCEWARD,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    POSTGRES,
    SQLITE,
    STORE_TITLES,
)
from bench.results import Results, Spread
from bench.suite import crash, fairness, latency, receive, recovery, single, verify
from bench.workloads import INSERT, WORKLOADS

DURABILITY = {
    POSTGRES: "Every commit is flushed: fsync, synchronous_commit and full_page_writes are on.",
    SQLITE: "Every commit is flushed: WAL, synchronous=FULL.",
}
MEDIANS = "Median (lowest–highest)."


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


def make_tables(results: Results) -> list[Table]:
    """Return the tables of one benchmark on one store."""
    return list(_TABLES[results.benchmark](results))


def format_spread(spread: Spread | None, digits: int = 0, limit: float = inf) -> str:
    """Format a median with its range. A value that reaches the limit was not measured further."""
    if spread is None:
        return "–"
    middle, low, high = (
        f"{number:,.{digits}f}" if number < limit else f"over {limit:,.0f}"
        for number in (spread.median, spread.low, spread.high)
    )
    return middle if low == high else f"{middle} ({low}–{high})"


def format_ratio(value: float | None, other: float | None) -> str:
    """Format how many times a value is another."""
    return f"{value / other:.2f}" if value and other else "–"


def _title(name: str) -> str:
    return BY_NAME[name].title


def _contenders(results: Results) -> list[str]:
    """Return the measured contenders in the order of the registry."""
    return [name for name in BY_NAME if name in results.contenders]


def _ingest(results: Results) -> Iterator[Table]:
    onceward, empty = (results.median(name, UNIQUE, "rate") for name in (ONCEWARD, EMPTY_ENDPOINT))
    rows = [
        [
            _title(name),
            *(format_spread(results.spread(name, load, "rate")) for load in LOADS),
            format_spread(results.spread(name, UNIQUE, "p99_ms")),
            format_ratio(onceward, results.median(name, UNIQUE, "rate")),
            format_ratio(results.median(name, UNIQUE, "rate"), empty),
        ]
        for name in _contenders(results)
    ]
    columns = ["", *(f"{load}/s" for load in LOADS), "p99 ms", "Onceward ÷ this",
               "this ÷ empty endpoint"]  # fmt: skip
    yield Table(
        f"Ingest on {STORE_TITLES[results.store]}",
        columns,
        rows,
        "Requests acknowledged per second by one server process over 64 keep-alive connections. "
        f"p99 and the ratios are for unique ids. {DURABILITY[results.store]} {MEDIANS}",
        _notes(results),
    )


def _receive(results: Results) -> Iterator[Table]:
    rows = [
        [
            case,
            _title(name),
            format_spread(results.spread(name, case, "cpu_us"), 1),
            format_spread(results.spread(name, case, "rate")),
            *(
                format_ratio(
                    results.median(name, case, value), results.median(EMPTY_ENDPOINT, case, value)
                )
                for value in ("cpu_us", "rate")
            ),
        ]
        for case in receive.CASES
        for name in _contenders(results)
        if results.spread(name, case, "cpu_us")
    ]
    columns = ["load", "", "µs of CPU", "requests/s", "CPU ÷ empty endpoint",
               "rate ÷ empty endpoint"]  # fmt: skip
    yield Table(
        f"Receive on {STORE_TITLES[results.store]}",
        columns,
        rows,
        "CPU time of the server process, user and system, for each acknowledged request, with "
        f"unique ids; the database's is not in it. {DURABILITY[results.store]} {MEDIANS}",
        _notes(results),
        text_columns=2,
    )


def _single(results: Results) -> Iterator[Table]:
    sides = (
        (ONCEWARD, "Onceward, POST to 2xx"),
        (single.BARE, "INSERT and COMMIT by the same driver"),
    )
    rows = [
        [
            title,
            *(
                format_spread(results.spread(name, single.CASE, value), 2)
                for value in ("p50_ms", "p99_ms")
            ),
        ]
        for name, title in sides
    ]
    caption = f"One connection, idle service. {DURABILITY[results.store]} {MEDIANS}"
    yield Table("One request at a time, PostgreSQL", ["", "p50 ms", "p99 ms"], rows, caption)


def _verify(results: Results) -> Iterator[Table]:
    sides = ((ONCEWARD, "Onceward, Stripe's scheme"), (verify.BARE, "HMAC-SHA256, nothing else"))
    rows = [
        [title, format_spread(results.spread(name, verify.CASE, "us"), 1)] for name, title in sides
    ]
    caption = (
        f"A request of 600 bytes, in the process, no I/O. The fastest of {verify.REPEATS} repeats "
        f"of {verify.CALLS} calls. {MEDIANS}"
    )
    yield Table("Verify a signature", ["", "µs"], rows, caption)


def _process(results: Results) -> Iterator[Table]:
    rows = [
        [
            _title(name),
            BY_NAME[name].commit,
            *(format_spread(results.spread(name, workload, "rate")) for workload in WORKLOADS),
            *(
                " / ".join(
                    format_ratio(
                        results.median(shape, workload, "rate"),
                        results.median(name, workload, "rate"),
                    )
                    for workload in WORKLOADS
                )
                for shape in (ONCEWARD_OWN, ONCEWARD_SHARED)
            ),
        ]
        for name in _contenders(results)
    ]
    columns = [
        "",
        "one commit holds",
        *(f"{workload}/s" for workload in WORKLOADS),
        "own ÷ this",
        "shared ÷ this",
    ]
    concurrency = {
        POSTGRES: f", {CONCURRENCY} handlers at once",
        SQLITE: "; SQLite has one writer",
    }
    yield Table(
        f"Process on {STORE_TITLES[results.store]}",
        columns,
        rows,
        f"Jobs per second of one worker process{concurrency[results.store]}. insert: each "
        f"handler inserts a row; update: each adds to one of {ACCOUNTS:,} accounts. Ratios: "
        f"insert / update. {DURABILITY[results.store]} {MEDIANS}",
        _notes(results),
        text_columns=2,
    )


def _latency(results: Results) -> Iterator[Table]:
    rows = [
        [
            case,
            _title(name),
            format_spread(results.spread(name, case, "rate")),
            *(
                format_spread(results.spread(name, case, value), 1)
                for value in ("p50_ms", "p99_ms", "max_ms")
            ),
        ]
        for case in latency.CASES
        for name in _contenders(results)
        if results.spread(name, case, "p50_ms")
    ]
    columns = ["load", "", "events/s", "p50 ms", "p99 ms", "max ms"]
    yield Table(
        f"Latency on {STORE_TITLES[results.store]}",
        columns,
        rows,
        f"From POST until the handler's commit ({INSERT}). {DURABILITY[results.store]} {MEDIANS}",
        _notes(results),
        text_columns=2,
    )


def _growth(results: Results) -> Iterator[Table]:
    rows = [
        [
            case,
            *(
                cell
                for value in ("ingest_rate", "process_rate")
                for cell in _compare_with_empty(results, case, value)
            ),
            *(
                f"{results.median(ONCEWARD_SHARED, f'empty, beside {case}', value):.0f} → "
                f"{results.median(ONCEWARD_SHARED, case, value):.0f}"
                for value in ("receiver_peak_mb", "worker_peak_mb")
            ),
        ]
        for case in results.cases
        if f"empty, beside {case}" in results.cases
    ]
    columns = ["ledger", "requests/s, empty", "large", "ratio", "jobs/s, empty", "large", "ratio",
               "receiver, peak MB", "worker, peak MB"]  # fmt: skip
    caption = (
        "Onceward with shared transactions on a large ledger, beside an empty one. "
        f"{DURABILITY[results.store]} {MEDIANS}"
    )
    yield Table("Growth on PostgreSQL", columns, rows, caption)


def _compare_with_empty(results: Results, case: str, value: str) -> Iterator[str]:
    empty = f"empty, beside {case}"
    yield format_spread(results.spread(ONCEWARD_SHARED, empty, value))
    yield format_spread(results.spread(ONCEWARD_SHARED, case, value))
    yield format_ratio(
        results.median(ONCEWARD_SHARED, case, value), results.median(ONCEWARD_SHARED, empty, value)
    )


def _crash(results: Results) -> Iterator[Table]:
    def cell(name: str, case: str, value: str, total: str | None = None) -> str:
        count = results.median(name, case, value)
        if count is None:
            return ""
        of = results.median(name, case, total) if total else None
        return f"{count:,.0f} of {of:,.0f}" if of else f"{count:,.0f}"

    rows = [
        [
            _title(name),
            cell(name, crash.RECEIVE, "lost", "acknowledged"),
            cell(name, crash.WORK, "missing", "jobs"),
            cell(name, crash.WORK, "repeated"),
            {"": "", "1": "no"}.get(cell(name, crash.REDELIVER, "runs"), "yes"),
        ]
        for name in _contenders(results)
    ]
    columns = ["", "acknowledged, lost", "effects missing", "effects repeated",
               "redelivery runs again"]  # fmt: skip
    caption = (
        "The receiver killed with its store under load; workers killed three times in the middle "
        "of their jobs; an event sent again after its job was done. Counts of one run."
    )
    yield Table("After kill -9, PostgreSQL", columns, rows, caption, _notes(results))


def _recovery(results: Results) -> Iterator[Table]:
    rows = [
        [
            case,
            _title(name),
            *(
                format_spread(results.spread(name, case, value), 1, recovery.LIMIT_SECONDS)
                for value in ("first_s", "last_s")
            ),
            format_spread(results.spread(name, case, "done")),
        ]
        for case in recovery.CASES
        for name in _contenders(results)
        if results.spread(name, case, "last_s")
    ]
    limit = f"{recovery.LIMIT_SECONDS:g} s"
    columns = ["", "", "first job, s", "last job, s", f"jobs done in {limit}"]
    caption = (
        f"From SIGKILL of a worker process that ran {recovery.JOBS} jobs until all were "
        f"committed, beside a worker that was idle until then. A job takes "
        f"{recovery.JOB_SECONDS * 1_000:g} ms. A trial ends after {limit}. {MEDIANS}"
    )
    yield Table("Recovery on PostgreSQL", columns, rows, caption, _notes(results), text_columns=2)


def _fairness(results: Results) -> Iterator[Table]:
    limit_ms = fairness.LIMIT_SECONDS * 1_000
    rows = [
        [
            case,
            _title(name),
            format_spread(results.spread(name, case, "rate")),
            *(
                format_spread(results.spread(name, case, value), 1, limit_ms)
                for value in ("p50_ms", "p99_ms")
            ),
        ]
        for case in fairness.CASES
        for name in _contenders(results)
        if results.spread(name, case, "rate")
    ]
    caption = (
        f"{fairness.RATE:g} events of a quick handler a second, from POST until its commit, in one "
        f"worker process with {CONCURRENCY} handlers at once. The other handler's jobs were queued "
        f"before. {DURABILITY[results.store]} {MEDIANS}"
    )
    columns = ["quick handler", "", "events/s", "p50 ms", "p99 ms"]
    yield Table("Fairness on PostgreSQL", columns, rows, caption, _notes(results), text_columns=2)


def _notes(results: Results) -> list[str]:
    """Return the stored notes, and why contenders or trials have no figures."""
    return [
        *results.notes,
        *(f"Not run: {_title(name)}: {reason}." for name, reason in results.not_run.items()),
        *(f"Failed: {label}: {reason}" for label, reason in results.failures.items()),
    ]


_TABLES: dict[str, Callable[[Results], Iterator[Table]]] = {
    "ingest": _ingest,
    "receive": _receive,
    "single": _single,
    "verify": _verify,
    "process": _process,
    "latency": _latency,
    "growth": _growth,
    "crash": _crash,
    "recovery": _recovery,
    "fairness": _fairness,
}
