"""The storm of duplicates is measured with Redis and without, in a short run."""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from rich.console import Console

from bench import deliveries
from bench.contenders.interface import ContenderConfig
from bench.databases import PostgresDatabases
from bench.deliveries import ORDERS, STORM_DELIVERIES
from bench.processes import TrialFailed
from bench.progress import run_trials
from bench.ratios import find_ratios
from bench.registry import BY_NAME, ONCEWARD_FLEET, ONCEWARD_FLEET_REDIS
from bench.results import Results, Sample
from bench.run import Options, Run, Schedule
from bench.suite import storm
from bench.tables import make_tables


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Yield a run of small fleets, without waits for the disk: no figure is tested."""
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(storm, "RECEIVERS", 2)
    monkeypatch.setattr(storm, "CASES", {"16 connections": 16})
    with PostgresDatabases() as databases:
        run = Run(Options(), databases)
        yield run
        run.close()


def test_both_fleets_get_the_same_bursts_in_turns(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storm, "MAX_BURST_SECONDS", 0.2)
    monkeypatch.setattr(storm, "_breaks", lambda _fleet: 0)  # beside other tests, Redis is slow
    (trial,) = storm.plan(run, Schedule(1, seconds=0.4))
    (outcome,) = run_trials([trial], Console(quiet=True))

    assert outcome.failure is None
    names = [sample.contender for sample in outcome.samples]
    assert sorted(names[:2]) == sorted(names[2:]) == [ONCEWARD_FLEET, ONCEWARD_FLEET_REDIS]
    assert names[:2] == names[:1:-1], "the order alternates"
    for sample in outcome.samples:
        values = sample.values
        assert values["rate"] > 0
        has_redis = sample.contender == ONCEWARD_FLEET_REDIS
        assert (values["redis_us"] > 0) <= has_redis
        assert (values.get("hits", 0.0) > 0) == has_redis
        assert values.get("hits", 0.0) < 1 - 1 / STORM_DELIVERIES, "a new event is no hit"


@pytest.mark.parametrize(
    ("lookups", "breaks", "reason"),
    [
        ({"hits": 0, "misses": 9}, 0, "Redis had none of 9 keys"),
        ({"hits": 5, "misses": 4}, 1, "left Redis alone"),
    ],
)
def test_a_cache_that_was_not_used_fails_the_trial(
    lookups: dict[str, int], breaks: int, reason: str
) -> None:
    fleet = storm.Fleet(BY_NAME[ONCEWARD_FLEET_REDIS], ContenderConfig(""), (), ())

    with pytest.raises(TrialFailed, match=reason):
        storm._check_redis(fleet, lookups, breaks)


def test_redis_stores_nothing_on_disk_as_is_recommended(run: Run) -> None:
    contender = BY_NAME[ONCEWARD_FLEET_REDIS]
    with run._redis(contender) as port:
        saves = run.redis_servers[port].command(b"CONFIG", b"GET", b"save")
        appends = run.redis_servers[port].command(b"CONFIG", b"GET", b"appendonly")

    assert saves.endswith(b"$4\r\nsave\r\n$0\r\n\r\n")
    assert appends.endswith(b"$2\r\nno\r\n")


def test_the_table_and_the_ratios_compare_with_the_own_memory() -> None:
    found = Results("storm", "postgres")
    for name, rate, cost in ((ONCEWARD_FLEET, 1_000.0, 80.0), (ONCEWARD_FLEET_REDIS, 900.0, 60.0)):
        for case in storm.CASES:
            values = {"rate": rate, "receivers_us": 100.0, "postgres_us": cost, "redis_us": 5.0}
            values |= {"hits": 0.5} if name == ONCEWARD_FLEET_REDIS else {}
            found.samples.append(Sample(name, case, 0, values))

    (table,) = make_tables(found)
    first, second, *_ = table.rows
    assert (first[1], first[-2:]) == (BY_NAME[ONCEWARD_FLEET].title, ["1.00", "1.00"])
    assert (second[1], second[-2:]) == (BY_NAME[ONCEWARD_FLEET_REDIS].title, ["0.90", "0.75"])
    assert second[table.columns.index("Redis, hits")] == "0.50"
    assert [ratio.value for ratio in find_ratios([found])] == [0.9, 1.0, 0.75] * len(storm.CASES)


def test_a_storm_sends_every_event_as_often() -> None:
    count = 10 * deliveries.STORM_GROUP
    sent = Counter(ORDERS[deliveries.STORM](count))

    assert sent == dict.fromkeys(range(count), STORM_DELIVERIES)


@pytest.mark.parametrize(
    ("load", "in_flight"), [(deliveries.STORM, 256), (deliveries.HALF_DUPLICATES, 64)]
)
def test_a_duplicate_follows_when_the_event_is_no_longer_in_flight(
    load: str, in_flight: int
) -> None:
    last: dict[int, int] = {}
    distances = []
    for position, number in enumerate(ORDERS[load](2_000)):
        if number in last:
            distances.append(position - last[number])
        last[number] = position

    assert min(distances) > in_flight
