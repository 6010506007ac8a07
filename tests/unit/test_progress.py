"""What a long command shows while it runs."""

import io

import pytest
from rich.console import Console

from onceward.cli import _progress
from onceward.cli._progress import StepProgress, show_progress
from onceward.operate.maintenance import Step


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Return what is written to a terminal."""
    written = io.StringIO()

    def make_terminal(*, err: bool) -> Console:
        assert err
        return Console(file=written, force_terminal=True, width=80, color_system=None)

    monkeypatch.setattr(_progress, "make_console", make_terminal)
    return written


def test_a_name_is_shown_as_it_is_and_not_as_markup(terminal: io.StringIO) -> None:
    with show_progress("verifying [bold]a") as show_text:
        show_text("verified [red]b\x1b[2J")
    assert "verified [red]b\\x1b[2J" in terminal.getvalue()


def test_steps_are_shown_and_kept(terminal: io.StringIO) -> None:
    with StepProgress() as progress:
        progress.report(Step("purge", "[red]jobs", 1))
        progress.report(Step("purge", "[red]jobs", 2))
    assert "purge [red]jobs: 2 rows" in terminal.getvalue()
    assert progress.steps == [Step("purge", "[red]jobs", 2)]


def test_nothing_is_shown_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with show_progress("verifying"):
        pass
    assert capfd.readouterr() == ("", "")
