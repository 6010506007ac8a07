"""How many faults each store gets, and in how much time."""

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class StorePlan:
    """The targets for one store. A phase ends when its target or its time limit is reached."""

    events: int
    """Sent during baseline, crashes and kills, in proportion to their time. Other stages add
    events of their own."""
    kills: int
    zombies: int
    crashes: int
    power_cuts: int
    lost_commits: int
    baseline_seconds: float
    crash_seconds: float
    kill_seconds: float
    zombie_seconds: float
    cut_seconds: float
    freezes: int = 0
    failovers: int = 0
    """Failovers to an asynchronous standby, between one to a synchronous standby and a restore."""
    cancellations: int = 0
    clock_steps: int = 0
    removed_files: int = 0
    queue_seconds: float = 0
    """How long events with ordering keys and limits are sent."""
    queue_kills: int = 0
    pauses: int = 0
    """Pauses of a handler and of a source; both are paused at once."""
    share_seconds: float = 0
    """How long a quick handler runs: alone, and again beside unfair ones."""
    recoveries: int = 0
    effect_kills: int = 0
    """Kills at random during outside calls, beside those at failpoints."""
    version_kills: int = 0
    """Kills while versions of objects arrive in random order."""
    hostile_bodies: int = 0
    """Bodies that a filter and a model could read in different ways."""
    retention_seconds: float = 0
    """How long maintenance forgets under load."""
    retention_kills: int = 0
    """Kills of processes that do maintenance, beside those at failpoints."""
    snapshot_seconds: float = 0
    """How long a transaction stays open while jobs come and go."""

    @property
    def load_seconds(self) -> float:
        """Return how long events are sent."""
        return self.baseline_seconds + self.crash_seconds + self.kill_seconds

    def scaled(self, share: float) -> "StorePlan":
        """Return a share of every count and time; a count that is not zero stays at least one."""
        parts: dict[str, float] = {}
        for entry in fields(self):
            whole = getattr(self, entry.name)
            is_count = isinstance(whole, int) and not entry.name.endswith("_seconds")
            part = whole * share
            parts[entry.name] = max(min(whole, 1), round(part)) if is_count else part
        return StorePlan(**parts)  # type: ignore[arg-type] # counts stay whole


@dataclass(frozen=True)
class Plan:
    """One form of the proof."""

    name: str
    minutes: float
    """The most time that the proof takes."""
    stores: dict[str, StorePlan]
    required: float
    """The share of each target that a pass requires."""
    overrun: float
    """The factor by which a phase may exceed its time to reach its target."""
    streams: int = 2_000
    """Streams of requests that are compared with h11."""

    def within(self, minutes: float) -> "Plan":
        """Return as much of the plan as fits into this time."""
        share = min(1.0, minutes / self.minutes)
        stores = {name: plan.scaled(share) for name, plan in self.stores.items()}
        streams = max(1, round(self.streams * share))
        return replace(self, minutes=minutes, stores=stores, streams=streams)


SHORT = Plan(
    name="short",
    minutes=3,
    stores={
        "postgres": StorePlan(
            events=12_000,
            kills=24,
            zombies=3,
            crashes=5,
            power_cuts=3,
            lost_commits=8,
            baseline_seconds=5,
            crash_seconds=8,
            kill_seconds=14,
            zombie_seconds=8,
            cut_seconds=30,
            freezes=2,
            failovers=1,
            cancellations=1_500,
            clock_steps=4,
            queue_seconds=6,
            queue_kills=4,
            pauses=2,
            effect_kills=4,
            version_kills=3,
            hostile_bodies=500,
            retention_seconds=10,
            retention_kills=4,
            share_seconds=2.5,
            recoveries=1,
            snapshot_seconds=3,
        ),
        "sqlite": StorePlan(
            events=8_000,
            kills=36,
            zombies=2,
            crashes=0,
            power_cuts=3,
            lost_commits=0,
            baseline_seconds=4,
            crash_seconds=0,
            kill_seconds=18,
            zombie_seconds=8,
            cut_seconds=20,
            cancellations=600,
            clock_steps=2,
            removed_files=4,
            queue_seconds=6,
            queue_kills=3,
            pauses=2,
            effect_kills=4,
            version_kills=3,
            hostile_bodies=500,
            retention_seconds=10,
            retention_kills=4,
        ),
    },
    required=1.0,
    overrun=2.5,
)
LONG = Plan(
    name="long",
    minutes=38,
    stores={
        "postgres": StorePlan(
            events=700_000,
            kills=1_200,
            zombies=70,
            crashes=300,
            power_cuts=50,
            lost_commits=40,
            baseline_seconds=10,
            crash_seconds=450,
            kill_seconds=1_000,
            zombie_seconds=130,
            cut_seconds=240,
            freezes=12,
            failovers=8,
            cancellations=30_000,
            clock_steps=16,
            queue_seconds=180,
            queue_kills=120,
            pauses=40,
            effect_kills=120,
            version_kills=60,
            hostile_bodies=5_000,
            retention_seconds=150,
            retention_kills=80,
            share_seconds=20,
            recoveries=8,
            snapshot_seconds=300,
        ),
        "sqlite": StorePlan(
            events=300_000,
            kills=800,
            zombies=30,
            crashes=0,
            power_cuts=50,
            lost_commits=0,
            baseline_seconds=10,
            crash_seconds=0,
            kill_seconds=1_100,
            zombie_seconds=60,
            cut_seconds=150,
            cancellations=15_000,
            clock_steps=8,
            removed_files=24,
            queue_seconds=180,
            queue_kills=80,
            pauses=40,
            effect_kills=120,
            version_kills=60,
            hostile_bodies=5_000,
            retention_seconds=150,
            retention_kills=80,
        ),
    },
    required=0.5,
    overrun=1.0,
    streams=100_000,
)
