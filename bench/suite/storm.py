"""Storm: eight receivers get each event eight times, with an id cache in Redis and without.

Both fleets run at the same time, each on a ledger of its own, and get bursts in alternation. A
burst has new events, so that no receiver knows one from an earlier burst. It ends with its last
group of events and not by time, so that both fleets get the same share of duplicates.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from bench.contenders.interface import ContenderConfig
from bench.deliveries import STORM as LOAD
from bench.deliveries import STORM_DELIVERIES, STORM_GROUP, prepare, random_ids
from bench.processes import ContenderProcess, TrialFailed, free_port, send, server_cpu_seconds
from bench.registry import POSTGRES, STORM, Contender
from bench.results import Sample
from bench.run import Bursts, Run, Schedule, Trial, require_success, round_order

RECEIVERS = 8
CASES = {"64 connections": 64, "256 connections": 256}
MAX_BURST_SECONDS = 2.0
GROUPS_PER_SECOND = 1.5
"""Whole groups of events in a burst, for each second that the schedule plans for it."""
LIMIT_SECONDS = 60.0
"""A burst that takes longer fails."""
START_SECONDS = 20.0
BURST_OVERHEAD_SECONDS = 0.5
FIRST_SEED = 3_000_000


@dataclass(frozen=True)
class Fleet:
    """The receivers of one contender on one ledger."""

    contender: Contender
    config: ContenderConfig
    servers: Sequence[ContenderProcess]
    ports: Sequence[int]


def plan(run: Run, schedule: Schedule) -> list[Trial]:
    """Plan one trial a round, on PostgreSQL only."""
    contenders = run.contenders(STORM)
    if run.options.store != POSTGRES or not contenders:
        return []
    bursts = schedule.bursts(MAX_BURST_SECONDS)
    burst_seconds = bursts.count * len(CASES) * (bursts.seconds + BURST_OVERHEAD_SECONDS)
    return [
        Trial(
            f"storm, round {number + 1}",
            len(contenders) * (START_SECONDS + burst_seconds),
            partial(_run_round, run, contenders, bursts, number),
        )
        for number in range(schedule.rounds)
    ]


def _run_round(
    run: Run, contenders: Sequence[Contender], bursts: Bursts, number: int
) -> list[Sample]:
    samples = []
    with ExitStack() as stack:
        fleets = [stack.enter_context(_fleet(run, contender)) for contender in contenders]
        groups = max(1, round(bursts.seconds * GROUPS_PER_SECOND))
        for fleet in fleets:
            _send(run, fleet, groups, FIRST_SEED, next(iter(CASES)))  # warm up
        for burst in range(1, bursts.count + 1):
            for case_number, case in enumerate(CASES):
                seed = FIRST_SEED + burst * len(CASES) + case_number
                for fleet in round_order(fleets, burst + case_number):
                    values = _send(run, fleet, groups, seed, case)
                    samples.append(Sample(fleet.contender.name, case, number, values))
    return samples


@contextmanager
def _fleet(run: Run, contender: Contender) -> Iterator[Fleet]:
    """Run the receivers of a contender, each with a port of its own."""
    with run.deployed(contender) as config, ExitStack() as stack:
        configs = [config.with_changes(port=free_port()) for _ in range(RECEIVERS)]
        servers = []
        for each in configs:
            server = stack.enter_context(ContenderProcess(contender.module, "serve", each))
            server.wait_until_serving()
            servers.append(server)
        yield Fleet(contender, config, servers, [each.port for each in configs])


def _send(run: Run, fleet: Fleet, groups: int, seed: int, case: str) -> dict[str, float]:
    """Send a burst, and return its rate and the CPU time of each part for a delivery."""
    ids = random_ids(groups * STORM_GROUP, seed=seed)
    deliveries = prepare(run.folder / STORM, ids)
    load_plan = run.load_plan(
        fleet.config,
        deliveries,
        LIMIT_SECONDS,
        connections=CASES[case],
        load=LOAD,
        ports=fleet.ports,
    )
    before, lookups, breaks = _cpu_seconds(run, fleet), _lookups(run, fleet), _breaks(fleet)
    report = require_success(send(load_plan), fleet.servers[0])
    if report.acknowledged < len(ids) * STORM_DELIVERIES:
        raise TrialFailed(f"the burst was not over after {LIMIT_SECONDS:g} s")
    used = {name: after - before[name] for name, after in _cpu_seconds(run, fleet).items()}
    found = {name: after - lookups[name] for name, after in _lookups(run, fleet).items()}
    _check_redis(fleet, found, _breaks(fleet) - breaks)
    return {
        "rate": report.rate,
        "p50_ms": report.p50_ms,
        "p99_ms": report.p99_ms,
        "generator_us": report.generator_us,
        **{name: count / report.acknowledged for name, count in found.items()},
        **{f"{name}_us": value / report.acknowledged * 1e6 for name, value in used.items()},
    }


def _lookups(run: Run, fleet: Fleet) -> dict[str, int]:
    """Return how many keys Redis had and had not so far; nothing for a fleet without Redis."""
    redis = run.redis_servers.get(fleet.config.redis_port)
    if redis is None:
        return {}
    lines = redis.command(b"INFO", b"stats").decode().splitlines()
    stats = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(stats[f"keyspace_{name}"]) for name in ("hits", "misses")}


def _check_redis(fleet: Fleet, lookups: Mapping[str, int], breaks: int) -> None:
    """Raise TrialFailed if the receivers did not use the ids in Redis."""
    log = "\n".join(server.log for server in fleet.servers)
    if breaks:
        raise TrialFailed(f"receivers left Redis alone, {breaks} times:\n{log}")
    if lookups and not lookups["hits"]:
        raise TrialFailed(f"Redis had none of {lookups['misses']} keys:\n{log}")


def _breaks(fleet: Fleet) -> int:
    """Return how often receivers began to leave Redis alone, because it timed out."""
    return sum(server.whole_log.count("is not used for now") for server in fleet.servers)


def _cpu_seconds(run: Run, fleet: Fleet) -> dict[str, float]:
    redis = run.redis_servers.get(fleet.config.redis_port)
    return {
        "receivers": sum(server.own_cpu_seconds() for server in fleet.servers),
        "postgres": server_cpu_seconds(run.databases.server_pids()),
        "redis": server_cpu_seconds([redis.pid]) if redis else 0.0,
    }


CAPTION = (
    f"{RECEIVERS} receiving processes on one ledger get each event {STORM_DELIVERIES} times, each "
    "time on any of them."
)
