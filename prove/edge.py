"""``python -m prove.edge``: the HTTP edge alone. Exit code 0 when green, 1 when red.

The stages: framing compared with h11, attacks on a running service, and proxies in front of it.
"""

import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from prove.attacks import ATTACKS, FULL, MAX_GROWTH_MEGABYTES, SMALL, AttacksResult, run_attacks
from prove.framing import MIN_ACCEPTED_SHARE, FramingResult, check_streams
from prove.honest_sender import Latency
from prove.proxies_in_front import PROXIES, ProxiesResult, check_proxies
from prove.workbench import Show

STAGES = ("framing", "attacks", "proxies")
STREAM_COUNT = 100_000
STREAMS_PER_PROXIED_REQUEST = 5
COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
)


@dataclass
class EdgeResult:
    """The result of the stages that ran."""

    framing: FramingResult | None = None
    attacks: AttacksResult | None = None
    proxies: ProxiesResult | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_green(self) -> bool:
        """Return whether every stage that ran is green."""
        stages = (self.framing, self.attacks, self.proxies)
        return all(stage is None or stage.is_green for stage in stages)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "framing": self.framing.as_json() if self.framing else None,
            "attacks": self.attacks.as_json() if self.attacks else None,
            "proxies": self.proxies.as_json() if self.proxies else None,
            "seconds": self.seconds,
        }


def run_edge(seed: int, show: Show, *, streams: int, stages: Sequence[str] = STAGES) -> EdgeResult:
    """Run the stages, one after another; a small number of streams asks for small attacks."""
    scale = FULL if streams >= STREAM_COUNT else SMALL
    requests = max(1, streams // STREAMS_PER_PROXIED_REQUEST)
    result = EdgeResult()
    for stage in stages:
        started = time.monotonic()
        if stage == "framing":
            result.framing = check_streams(seed, streams, partial(_progress, show, stage, streams))
        elif stage == "attacks":
            result.attacks = run_attacks(scale, partial(_progress, show, stage, len(ATTACKS)))
        else:
            total = len(PROXIES) * requests
            result.proxies = check_proxies(seed, requests, partial(_progress, show, stage, total))
        result.seconds[stage] = round(time.monotonic() - started, 1)
    return result


def _progress(show: Show, stage: str, total: int, done: int) -> None:
    show(f"edge: {stage}", done, total)


def show_edge(result: EdgeResult, console: Console) -> None:
    """Print what was compared, and what was found."""
    if result.framing is not None:
        _show_framing(result.framing, console)
    if result.attacks is not None:
        _show_attacks(result.attacks, console)
    if result.proxies is not None:
        _show_proxies(result.proxies, console)


def _show_framing(framing: FramingResult, console: Console) -> None:
    console.print(
        f"Framing: {framing.streams:,} streams compared with h11, {framing.messages:,} messages; "
        f"refused by both: {framing.refused_by_both:,}; accepted by h11: "
        f"{framing.accepted_by_h11:,}, here {framing.accepted_share:.0%} of those."
    )
    for category, count in framing.only_refused_here.most_common(20):
        console.print(f"  [dim]refused only here: {count:,} for {escape(category)}[/]")
    if framing.accepted_share < MIN_ACCEPTED_SHARE:
        console.print(f"[red]Refuses too much: at least {MIN_ACCEPTED_SHARE:.0%} are required.[/]")
    for rule, count in framing.broken_rules.most_common():
        console.print(f"[red]{count:,} streams: {escape(rule)}[/]")
    for failure in framing.failures:
        console.print(escape(str(failure)), soft_wrap=True)


def _show_attacks(attacks: AttacksResult, console: Console) -> None:
    table = Table(title="Attacks, and an honest sender meanwhile", title_justify="left")
    for column in ("", "growth, MB", "median, ms", "p99, ms", "requests"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("no attack", "", *_latency(attacks.calm))
    for attack in attacks.attacks:
        table.add_row(attack.name, f"{attack.growth_megabytes:g}", *_latency(attack.honest))
    limits = f"{MAX_GROWTH_MEGABYTES:g}", "", f"{attacks.max_p99_ms:g}", ""
    table.add_row("[dim]limit[/]", *limits)
    console.print(table)
    for attack in attacks.attacks:
        for finding in attack.findings:
            console.print(f"[red]{attack.name}: {escape(finding)}[/]")


def _latency(latency: Latency) -> tuple[str, str, str]:
    return f"{latency.median_ms:g}", f"{latency.p99_ms:g}", f"{latency.count:,}"


def _show_proxies(proxies: ProxiesResult, console: Console) -> None:
    for proxy in proxies.proxies:
        if proxy.skipped:
            console.print(f"[yellow]Behind {proxy.name}: skipped: {proxy.skipped}[/]")
            continue
        console.print(
            f"Behind {proxy.name}: {proxy.sent:,} requests sent, {proxy.forwarded:,} forwarded, "
            f"{proxy.received:,} received, {proxy.refused:,} of the forwarded refused."
        )
        for finding in proxy.findings:
            console.print(f"[red]{proxy.name}: {escape(finding)}[/]", soft_wrap=True)


@click.command()
@click.option("--seed", type=int, help="Seed of every random choice.  [default: random]")
@click.option("--streams", type=click.IntRange(min=1), default=STREAM_COUNT, show_default=True)
@click.option("--only", type=click.Choice(STAGES), help="Run one stage alone.")
def main(*, seed: int | None, streams: int, only: str | None) -> None:
    """Compare and attack the HTTP edge."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    console = Console(highlight=False)
    console.print(f"Seed {seed}.")
    with Progress(*COLUMNS, console=console) as progress:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None)
            progress.update(tasks[stage], completed=done, total=total or None)

        result = run_edge(seed, show, streams=streams, stages=(only,) if only else STAGES)
    show_edge(result, console)
    console.print("[bold green]Green.[/]" if result.is_green else "[bold red]Red.[/]")
    console.print(f"To repeat: python -m prove.edge --seed {seed} --streams {streams}")
    sys.exit(0 if result.is_green else 1)


if __name__ == "__main__":
    main()
