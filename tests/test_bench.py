"""The benchmark's own parts, with nothing installed but Onceward: a short form of a run."""

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from bench import document, results
from bench.contenders.interface import Place
from bench.database import open_databases
from bench.deliveries import BODY_BYTES, LOADS, body, is_authentic, prepare, random_ids, sign
from bench.field import EMPTY, FIELD, OURS, OURS_OWN
from bench.generator import Order
from bench.measures import ingest, process
from bench.plot import charts, draw
from bench.process import Failed, free_port, received, send
from bench.progress import carry_out
from bench.results import Results, Sample
from bench.run import Options, Run, Step
from bench.tables import grids
from bench.targets import targets

CONTENDERS = Path(results.__file__).parent / "contenders"
SHORT = Options(rounds=1, seconds=0.2, only=(OURS, EMPTY), connections=16, jobs=1_000)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with open_databases("postgres") as databases:
        yield Run(SHORT, databases)


def test_a_short_run_leaves_results_tables_and_a_drawing(run: Run, tmp_path: Path) -> None:
    every = [Results("ingest", "postgres"), Results("process", "postgres")]
    for found, steps in zip(every, (ingest.steps(run), process.steps(run)[:1]), strict=True):
        for outcome in carry_out(steps, Console(quiet=True)):
            assert outcome.failure is None
            found.samples += outcome.samples

    results.save(tmp_path, every)
    loaded = results.load(tmp_path, ["ingest", "process"], ["postgres"])

    assert loaded == every
    assert loaded[0].contenders == [OURS, EMPTY]
    assert loaded[0].cases == list(LOADS)
    assert loaded[1].contenders == [OURS_OWN]
    for results_ in loaded:
        for name in results_.contenders:
            for case in results_.cases:
                assert (results_.median(name, case, "rate") or 0) > 0
    assert [grid.title for grid in grids(loaded)] == [
        "Ingest, postgres: unique",
        "Ingest, postgres: half",
        "Ingest, postgres: storm",
        "Process, postgres: insert",
    ]
    assert ET.fromstring(draw(charts(loaded))).tag.endswith("svg")  # noqa: S314 - our own


def test_what_the_generator_counts_is_what_the_ledger_holds(run: Run, tmp_path: Path) -> None:
    ours = next(entry for entry in FIELD if entry.name == OURS)
    journal = tmp_path / "journal"
    with run.place(ours) as place:
        with run.serving(ours, place):
            found = send(run.order(place, run.half, load="half", journal=str(journal)))
        numbers = json.loads(journal.read_text())["numbers"]
        held = received(ours.module, place) - set(run.warm_up.ids)

    assert found.statuses == {"202": found.acknowledged}
    assert found.acknowledged == len(numbers)
    assert held == {run.half.ids[number] for number in numbers}
    assert len(held) < found.acknowledged


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A server that gives one connection these answers, in pieces, and then hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                connection.recv(65_536)
                for piece in (answer[:20], answer[20:]):
                    connection.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    thread.join()
    listener.close()


def test_the_generator_counts_only_whole_answers_that_say_2xx(tmp_path: Path) -> None:
    deliveries = prepare(tmp_path / "requests", random_ids(4, seed=1))
    good = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"
    bad = b"HTTP/1.1 503 Unavailable\r\ncontent-length: 0\r\n\r\n"
    with answering(good, bad, good) as port:
        order = Order(port, str(deliveries.file), deliveries.request_bytes, connections=1)
        found = send(order)

    assert found.statuses == {"202": 2, "503": 1}
    assert found.acknowledged == 2
    assert found.refused == 1
    assert found.is_cut_off


def test_every_body_has_the_same_length_and_verifies() -> None:
    number = random.Random(1).randrange(1_000_000)  # noqa: S311 - repeatable
    content = body(random_ids(1, seed=2)[0], number)

    assert len(content) == BODY_BYTES
    assert is_authentic(content, sign(content))
    assert not is_authentic(content, sign(content + b" "))
    assert not is_authentic(content, None)


def test_half_of_the_load_half_is_sent_twice() -> None:
    sent = list(LOADS["half"](1_000))

    assert len(sent) == 2_000
    assert set(sent) == set(range(1_000))


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    def fail() -> list[Sample]:
        raise Failed("it fell over\nwith a long log")

    sample = Sample(OURS, "unique", 0, {"rate": 1.0})
    outcomes = carry_out(
        [Step("first", 1.0, fail), Step("second", 1.0, lambda: [sample])], Console(quiet=True)
    )

    assert [outcome.failure for outcome in outcomes] == ["it fell over with a long log", None]
    assert outcomes[1].samples == [sample]


def test_a_target_is_reached_by_the_ratio_of_medians() -> None:
    found = Results("ingest", "postgres")
    for round_, rate in enumerate((900.0, 8_000.0, 8_200.0)):
        found.samples.append(Sample(OURS, "unique", round_, {"rate": rate}))
        found.samples.append(Sample("onconflict", "unique", round_, {"rate": 2_000.0}))

    reached = {target.what: target.reached for target in targets({"ingest": found})}

    assert reached["ingest, against INSERT … ON CONFLICT, psycopg"] is True
    assert reached["ingest, against the empty endpoint"] is None


def test_the_page_gets_its_tables_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n")
    facts = dict.fromkeys(("date", "processor", "system", "python", "store"), "x")
    facts |= {"cores": "2", "memory_gb": "1", "server_version": "15", "command": "bench"}
    sample = Sample(OURS, "unique", 0, {"rate": 1_234.0, "p50_ms": 1.0, "p99_ms": 2.0})
    document.write([Results("ingest", "postgres", facts | {"packages": {}}, [sample])], page)

    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "1,234" in text
    assert "old" not in text
    assert (tmp_path / document.DRAWING).exists()


def test_every_contender_has_a_file_and_a_name_of_its_own() -> None:
    names = [entry.name for entry in FIELD]

    assert len(names) == len(set(names))
    assert {entry.module for entry in FIELD} <= {file.stem for file in CONTENDERS.glob("*.py")}


def test_a_place_survives_the_command_line() -> None:
    place = Place("postgresql://x", port=free_port(), lease_seconds=1.5)

    assert Place.from_json(place.to_json()) == place
