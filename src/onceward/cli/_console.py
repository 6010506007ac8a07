"""Styled text and tables. Apart from `_options`, because rich takes long to import."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from onceward.runtime.redact import escape_controls


def make_console(*, highlight: bool = False, soft_wrap: bool = False, err: bool = False) -> Console:
    """Return a console for styled text and tables, which escapes what it prints."""
    return _SafeConsole(highlight=highlight, soft_wrap=soft_wrap, stderr=err)


def escaped_text(text: str, style: str = "") -> Text:
    """Return a value for a table or a line: a line break in it is escaped too."""
    return Text(escape_controls(text), style)


class _SafeConsole(Console):
    """A console that escapes control characters, other than line breaks and its own styles."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a renderable."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                text = "\n".join(map(escape_controls, segment.text.split("\n")))
                yield Segment(text, segment.style)
