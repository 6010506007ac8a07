"""The result of the models as text."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prove.models.check import Counterexample, ModelsResult, ProtocolResult


def show_models(result: ModelsResult, console: Console) -> None:
    """Print the states that were searched, the rules that are needed, and what is wrong."""
    table = Table(title="Models, searched exhaustively", title_justify="left")
    for column in ("", "states", "rules", "steps of their traces", "limits", "seconds"):
        table.add_column(column, justify="right" if column else "left")
    for name, protocol in result.protocols.items():
        table.add_row(name, *_cells(protocol))
    console.print(table)
    for name, protocol in result.protocols.items():
        for finding in protocol.findings():
            console.print(f"[red]{name}: {escape(finding)}[/]", soft_wrap=True)


def _cells(protocol: ProtocolResult) -> tuple[str, ...]:
    steps = [len(rule.search.trace) for rule in protocol.rules if rule.is_green]
    return (
        f"{protocol.states:,}",
        f"{len(protocol.rules)}",
        f"{min(steps)} to {max(steps)}" if steps else "",
        f"{len(protocol.limits)}",
        f"{protocol.seconds:.1f}",
    )


def show_protocol(protocol: ProtocolResult, console: Console) -> None:
    """Print the sizes that were searched, and each rule with the trace that shows it."""
    console.print(f"Promises: {protocol.promises}.", soft_wrap=True)
    console.print()
    for held in protocol.held:
        console.print(f"{held.configuration}; {held.search}", soft_wrap=True)
    for title, entries in (("Without the rule", protocol.rules), ("Limit", protocol.limits)):
        for entry in entries:
            console.print(f"\n[bold]{title} {entry.name}[/]: {entry.sentence}", soft_wrap=True)
            console.print(escape(str(entry.search)), soft_wrap=True)


def show_trace(entry: Counterexample, console: Console) -> None:
    """Print one counterexample, a step a line."""
    console.print(f"{entry.name}: {entry.sentence}", soft_wrap=True)
    searched = f"Searched {entry.search.states:,} states ({entry.configuration})."
    console.print(searched, soft_wrap=True)
    for number, step in enumerate(entry.search.trace, start=1):
        console.print(f"{number:3}. {escape(step)}")
    violation = entry.search.violation or "no harm found"
    console.print(f"[bold]     {escape(violation)}[/]")
