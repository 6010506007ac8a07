"""The verdict as text."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prove.edge import show_edge
from prove.models.report import show_models
from prove.verdict import Verdict, kills_per_minute, total
from prove.workbench import StoreResult


def show(verdict: Verdict, console: Console) -> None:
    """Print the models, the injected faults, the amounts checked, the findings and the verdict."""
    if verdict.models is not None:
        show_models(verdict.models, console)
    if verdict.results:
        console.print(_faults(verdict))
        console.print(_figures(verdict))
    if any(result.delays for result in verdict.results):
        console.print(_delays(verdict))
    if verdict.bad_inputs is not None:
        passed, failed = verdict.bad_inputs.passed, verdict.bad_inputs.failed
        console.print(f"Bad inputs: {passed} tests passed, {failed} failed.")
        console.print(escape(verdict.bad_inputs.tail))
    if verdict.edge is not None:
        show_edge(verdict.edge, console)
    for result in verdict.results:
        for stage, reason in result.not_run.items():
            console.print(f"[yellow]Not run on {result.store}: {stage} ({escape(reason)})[/]")
        for note in result.notes:
            console.print(f"{result.store}: {escape(note)}")
        _show_findings(result, console)
    _show_unmet(verdict, console)
    _show_verdict(verdict, console)


def _faults(verdict: Verdict) -> Table:
    table = Table(title="Injected faults", title_justify="left")
    table.add_column("")
    names = list(dict.fromkeys(name for result in verdict.results for name in result.tally))
    for result in verdict.results:
        table.add_column(result.store, justify="right")
    for name in names:
        table.add_row(name, *(f"{result.tally[name]:,}" for result in verdict.results))
    rates = (f"{kills_per_minute(result):g}" for result in verdict.results)
    table.add_row("kills per minute", *rates)
    table.add_row(
        "kills at failpoints", *(f"{result.failpoints.total():,}" for result in verdict.results)
    )
    return table


def _figures(verdict: Verdict) -> Table:
    table = Table(title="Checked", title_justify="left")
    table.add_column("")
    totals = [total(result) for result in verdict.results]
    for result in verdict.results:
        table.add_column(result.store, justify="right")
    for name in totals[0].__dict__:
        table.add_row(name.replace("_", " "), *(f"{getattr(each, name):,}" for each in totals))
    seconds = [result.seconds for result in verdict.results]
    for name in dict.fromkeys(name for entry in seconds for name in entry):
        table.add_row(
            f"[dim]{name}, seconds[/]",
            *(f"[dim]{entry[name]:g}[/]" if name in entry else "" for entry in seconds),
        )
    return table


def _delays(verdict: Verdict) -> Table:
    table = Table(title="The longest time until it worked again", title_justify="left")
    for column in ("", "seconds", "limit"):
        table.add_column(column, justify="right" if column else "left")
    for result in verdict.results:
        for what, delay in result.delays.items():
            name = f"{result.store}: {what}"
            table.add_row(name, f"{delay.seconds:.2f}", f"{delay.limit_seconds:g}")
    return table


def _show_findings(result: StoreResult, console: Console) -> None:
    for violation, count in result.counts.items():
        noun = "finding" if count == 1 else "findings"
        console.print(f"\n[bold red]{result.store}: {violation} ({count} {noun})[/]")
        for stage, finding in result.findings:
            if finding.violation is violation:
                console.print(f"  {stage}: {escape(finding.detail)}")
                for line in finding.timeline:
                    console.print(f"    {escape(line)}", soft_wrap=True)


def _show_unmet(verdict: Verdict, console: Console) -> None:
    for entry in verdict.requirements:
        if not entry.is_met:
            console.print(
                f"[red]Below the minimum on {entry.store}: {entry.what} {entry.reached}, "
                f"required {entry.required}[/]"
            )


def _show_verdict(verdict: Verdict, console: Console) -> None:
    command = f"python -m prove --seed {verdict.seed}"
    command += " --long" if verdict.form == "long" else ""
    command += f" --sabotage {verdict.sabotage}" if verdict.sabotage else ""
    command += f' --stage "{verdict.stage}"' if verdict.stage else ""
    console.print()
    if verdict.is_green:
        console.print("[bold green]Green: nothing was lost, duplicated or invented.[/]")
        for what, count, bound in verdict.bounds():
            console.print(f"  0 failures in {count:,} {what}: below {bound:.2g} each, at 95%")
    else:
        console.print("[bold red]Red.[/]")
    console.print(f"Seed {verdict.seed}, {verdict.seconds:.0f} s. To repeat: {command}")
