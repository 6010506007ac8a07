"""The tables of each benchmark, from its results."""

from collections.abc import Callable, Iterator

from bench.deliveries import ACCOUNTS, LOADS, UNIQUE
from bench.ratios import compare_contenders, compare_maintenance, compare_with_empty
from bench.registry import (
    BY_NAME,
    CONCURRENCY,
    EMPTY_ENDPOINT,
    ONCEWARD,
    ONCEWARD_FLEET,
    ONCEWARD_OWN,
    ONCEWARD_SHARED,
    POSTGRES,
    SHAPES_LOOP,
    SQLITE,
    STORE_TITLES,
)
from bench.results import Results
from bench.shapes import TITLES as SHAPE_TITLES
from bench.suite import (
    crash,
    fairness,
    latency,
    receive,
    recovery,
    retention,
    shapes,
    single,
    storm,
    verify,
)
from bench.table import Table, format_spread
from bench.workloads import INSERT, WORKLOADS

DURABILITY = {
    POSTGRES: (
        "Every receipt and every job's end is flushed; Onceward's claims and renewals do not wait "
        "for the disk. fsync, synchronous_commit and full_page_writes are on."
    ),
    SQLITE: "Every commit is flushed: WAL, synchronous=FULL.",
}
MEDIANS = "Median (lowest–highest)."


def make_tables(results: Results) -> list[Table]:
    """Return the tables of one benchmark on one store."""
    return list(_TABLES[results.benchmark](results))


def _title(name: str) -> str:
    return BY_NAME[name].title


def _contenders(results: Results) -> list[str]:
    """Return the measured contenders in the order of the registry."""
    return [name for name in BY_NAME if name in results.contenders]


def _ratio(results: Results, name: str, other: str, case: str, value: str = "rate") -> str:
    return format_spread(compare_contenders(results, name, other, case, value), 2)


def _ingest(results: Results) -> Iterator[Table]:
    rows = [
        [
            _title(name),
            *(format_spread(results.spread(name, load, "rate")) for load in LOADS),
            format_spread(results.spread(name, UNIQUE, "p99_ms")),
            _ratio(results, ONCEWARD, name, UNIQUE),
            _ratio(results, name, EMPTY_ENDPOINT, UNIQUE),
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
            *(_ratio(results, name, EMPTY_ENDPOINT, case, value) for value in ("cpu_us", "rate")),
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
                " / ".join(_ratio(results, shape, name, workload) for workload in WORKLOADS)
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
        POSTGRES: f", {CONCURRENCY} handlers at once (Celery: in {CONCURRENCY} processes)",
        SQLITE: "; SQLite has one writer",
    }
    yield Table(
        f"Process on {STORE_TITLES[results.store]}",
        columns,
        rows,
        f"Jobs per second of one worker{concurrency[results.store]}, counted by the handlers' "
        "commits. insert: each "
        f"handler inserts a row; update: each adds to one of {ACCOUNTS:,} accounts. Ratios: "
        f"insert / update. {DURABILITY[results.store]} {MEDIANS}",
        _notes(results),
        text_columns=2,
    )


def _shapes(results: Results) -> Iterator[Table]:
    values = {"rate": 0, "worker_us": 1, "postgres_us": 1}
    rows = [
        [
            SHAPE_TITLES[shape],
            _title(name),
            *(
                format_spread(results.spread(name, shape, value), digits)
                for value, digits in values.items()
            ),
            *(_ratio(results, name, SHAPES_LOOP, shape, value) for value in values),
        ]
        for shape in shapes.CASES
        for name in _contenders(results)
        if results.spread(name, shape, "rate")
    ]
    columns = ["handler", "", "jobs/s", "worker, µs of CPU", "PostgreSQL, µs",
               "rate ÷ psycopg loop", "worker ÷ psycopg loop",
               "PostgreSQL ÷ psycopg loop"]  # fmt: skip
    yield Table(
        f"Shapes on {STORE_TITLES[results.store]}",
        columns,
        rows,
        f"{shapes.CAPTION} {DURABILITY[results.store]} {MEDIANS}",
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
    yield format_spread(compare_with_empty(results, case, value), 2)


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


def _storm(results: Results) -> Iterator[Table]:
    rows = [
        [
            case,
            _title(name),
            format_spread(results.spread(name, case, "rate")),
            format_spread(results.spread(name, case, "p99_ms")),
            *(
                format_spread(results.spread(name, case, f"{part}_us"), 1)
                for part in ("receivers", "postgres", "redis")
            ),
            format_spread(results.spread(name, case, "hits"), 2),
            *(
                _ratio(results, name, ONCEWARD_FLEET, case, value)
                for value in ("rate", "postgres_us")
            ),
        ]
        for case in storm.CASES
        for name in _contenders(results)
        if results.spread(name, case, "rate")
    ]
    columns = ["load", "", "deliveries/s", "p99 ms", "receivers, µs of CPU", "PostgreSQL, µs",
               "Redis, µs", "Redis, hits", "rate ÷ own memory",
               "PostgreSQL ÷ own memory"]  # fmt: skip
    yield Table(
        "Storm on PostgreSQL",
        columns,
        rows,
        f"{storm.CAPTION} CPU time and hits are for each delivery. "
        f"{DURABILITY[results.store]} {MEDIANS}",
        _notes(results),
        text_columns=2,
    )


def _retention(results: Results) -> Iterator[Table]:
    def cells(case: retention.Case, value: str, digits: int) -> Iterator[str]:
        for title in (case.without, case.title):
            yield format_spread(results.spread(ONCEWARD, title, value), digits)

    rows = [
        [
            case.title,
            *cells(case, "p50_ms", 1),
            *cells(case, "p99_ms", 1),
            format_spread(compare_maintenance(results, case, "p99_ms"), 2),
            *cells(case, "max_ms", 0),
            format_spread(compare_maintenance(results, case, "max_ms"), 2),
            format_spread(results.spread(ONCEWARD, case.title, "purged_rate")),
        ]
        for case in retention.CASES
        if case.title in results.cases
    ]
    columns = ["maintenance", "p50 ms, without", "during", "p99 ms, without", "during", "p99 ratio",
               "longest ms, without", "during", "longest ratio", "rows purged/s"]  # fmt: skip
    load = results.environment.get("load_average", "unknown")
    yield Table(
        "Receiving during maintenance, PostgreSQL",
        columns,
        rows,
        f"POST to 2xx at {retention.RATE:g} requests a second, on a ledger of past weeks, without "
        "and during maintenance in turns. A ratio is that of the turns of a round. "
        f"Load average before the run: {load}. {DURABILITY[results.store]} {MEDIANS}",
        _notes(results),
    )
    yield from _retained_sizes(results)


def _retained_sizes(results: Results) -> Iterator[Table]:
    rows = []
    for relation in retention.RELATIONS:
        samples = [each for each in results.samples if each.case == retention.size_case(relation)]
        if samples:
            ratios = [each.values["mb"] / each.values["fresh_mb"] for each in samples]
            last = samples[-1].values
            sizes = [f"{last[value]:.1f}" for value in ("fresh_mb", "mb")]
            rows.append([f"`{relation}`", *sizes, *(f"{ratio:.2f}" for ratio in ratios)])
    if rows:
        rounds = [f"ratio, round {number + 1}" for number in range(len(rows[0]) - 3)]
        yield Table(
            "Sizes after rounds of filling and purging, PostgreSQL",
            ["", "fresh MB", "after the last round MB", *rounds],
            rows,
            f"A round replaces all events but those of failed jobs in {retention.STEPS} steps: "
            "new ones in, the oldest purged, VACUUM. Beside it, a fresh ledger with the same rows.",
        )


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
    "shapes": _shapes,
    "latency": _latency,
    "growth": _growth,
    "crash": _crash,
    "recovery": _recovery,
    "fairness": _fairness,
    "storm": _storm,
    "retention": _retention,
}
