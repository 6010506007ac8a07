"""The verdict on a screen."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prove.stages import Result
from prove.verdict import Verdict, kills_a_minute, total


def show(verdict: Verdict, console: Console) -> None:
    """Print what was injected, what was reached, what was found."""
    console.print(_injected(verdict))
    console.print(_checked(verdict))
    if verdict.inputs is not None:
        console.print(
            f"Bad inputs: {verdict.inputs.passed} tests passed, {verdict.inputs.failed} failed."
        )
        console.print(escape(verdict.inputs.tail))
    for result in verdict.results:
        for stage, reason in result.not_run.items():
            console.print(f"[yellow]Not run on {result.store}: {stage} ({escape(reason)})[/]")
        _show_findings(result, console)
    for entry in verdict.requirements:
        if not entry.is_met:
            console.print(
                f"[red]Not enough on {entry.store}: {entry.what} {entry.reached}, "
                f"required {entry.required}[/]"
            )
    _show_end(verdict, console)


def _injected(verdict: Verdict) -> Table:
    table = Table(title="What was done to it", title_justify="left")
    table.add_column("")
    names = list(dict.fromkeys(name for result in verdict.results for name in result.tally))
    for result in verdict.results:
        table.add_column(result.store, justify="right")
    for name in names:
        table.add_row(name, *(f"{result.tally[name]:,}" for result in verdict.results))
    table.add_row("kills a minute", *(f"{kills_a_minute(result):g}" for result in verdict.results))
    table.add_row(
        "kills at failpoints", *(f"{result.failpoints.total():,}" for result in verdict.results)
    )
    return table


def _checked(verdict: Verdict) -> Table:
    table = Table(title="What was looked at", title_justify="left")
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


def _show_findings(result: Result, console: Console) -> None:
    for rule, count in result.counts.items():
        console.print(f"\n[bold red]{result.store}: {rule} ({count} times)[/]")
        for stage, finding in result.findings:
            if finding.rule is rule:
                console.print(f"  {stage}: {escape(finding.detail)}")
                for line in finding.timeline:
                    console.print(f"    {escape(line)}", soft_wrap=True)


def _show_end(verdict: Verdict, console: Console) -> None:
    again = f"python -m prove --seed {verdict.seed}" + (" --long" if verdict.form == "long" else "")
    console.print()
    if verdict.is_green:
        console.print("[bold green]Green: nothing was lost, doubled or made up.[/]")
        for what, count, bound in verdict.bounds():
            console.print(f"  0 in {count:,} {what}: less than {bound:.2g} each, at 95%")
    else:
        console.print("[bold red]Red.[/]")
    console.print(f"Seed {verdict.seed}, {verdict.seconds:.0f} s. Again: {again}")
