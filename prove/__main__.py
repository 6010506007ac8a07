"""``python -m prove``: exit code 0 when green, 1 when red, 2 when it could not run."""

import os
import random
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console

from prove import report
from prove.plan import LONG, SHORT
from prove.proof import MODELS, prove
from prove.sabotage import VARIABLE, Sabotage
from prove.stages import POSTGRES_STAGES, SQLITE_STAGES
from prove.verdict import Verdict
from support.disks import remove_stale_disks
from support.postgres import ServerFailed

RESULTS = Path(__file__).parent / "results"
GREEN, RED, COULD_NOT_RUN = 0, 1, 2
STORES = {"postgres": POSTGRES_STAGES, "sqlite": SQLITE_STAGES}
STAGES = [MODELS, *{**POSTGRES_STAGES, **SQLITE_STAGES}]


@click.command()
@click.option("--seed", type=int, help="Seed of every random choice.  [default: random]")
@click.option("--long", "is_long", is_flag=True, help="Send a million events, in under 40 minutes.")
@click.option("--store", type=click.Choice([*STORES, "both"]), default="both", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
@click.option(
    "--sabotage",
    type=click.Choice([choice.value for choice in Sabotage if choice]),
    help="Break a promise on purpose: the verdict must be red.",
)
@click.option("--stage", type=click.Choice(STAGES), help="Run one stage alone.")
@click.option(
    "--skip-bad-inputs", is_flag=True, help="Leave out the bad inputs, which `make test` sends."
)
@click.option("--minutes", type=click.FloatRange(min=0.5), help="Limit the time, and the faults.")
def main(
    *,
    seed: int | None,
    is_long: bool,
    store: str,
    as_json: bool,
    sabotage: str | None,
    stage: str | None,
    skip_bad_inputs: bool,
    minutes: float | None,
) -> None:
    """Inject faults into the service, and check that it loses, duplicates and invents nothing."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    plan = LONG if is_long else SHORT
    if minutes is not None:
        plan = plan.within(minutes)
    stores = [name for name in STORES if store in (name, "both") and _has(name, stage)]
    console = Console(stderr=as_json, highlight=False)
    where = f", on {' and '.join(stores)}" if stores else ""
    console.print(f"Seed {seed}, {plan.name} form{where}.")
    remove_stale_disks()
    os.environ[VARIABLE] = sabotage or ""
    try:
        verdict = prove(plan, stores, seed, console, only=stage, skip_bad_inputs=skip_bad_inputs)
    except ServerFailed as error:
        console.print(f"[red]Could not run: {error}[/]")
        sys.exit(COULD_NOT_RUN)
    except KeyboardInterrupt:
        console.print("[red]Interrupted: no verdict.[/]")
        sys.exit(COULD_NOT_RUN)
    report.show(verdict, console)
    is_complete = store == "both" and not any((sabotage, stage, minutes, skip_bad_inputs))
    if verdict.is_green and is_complete:
        _save(verdict)
    if as_json:
        click.echo(msgspec.json.encode(verdict.as_json()).decode())
    sys.exit(GREEN if verdict.is_green else RED)


def _has(store: str, stage: str | None) -> bool:
    return stage is None or stage in STORES[store]


def _save(verdict: Verdict) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(verdict.as_json()), indent=2)
    (RESULTS / f"{verdict.form}.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
