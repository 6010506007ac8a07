"""Results as a drawing: bars in SVG, readable on a light and on a dark page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.field import FIELD, ONCEWARD
from bench.results import Results

TITLES = {entry.name: entry.title for entry in FIELD}

WIDTH = 760
LABELS = 250
VALUES = 90
BAR = 16
ROW = 24
HEAD = 40
GAP = 18

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 15px; }
.bar { fill: #8c959f; }
.ours { fill: #1a7f64; }
.ends { stroke: #24292f; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .bar { fill: #6e7681; }
  .ours { fill: #3fb68f; }
  .ends { stroke: #e6edf3; }
}
"""


@dataclass(frozen=True)
class Bar:
    """One contender: its median, and the ends of its spread."""

    label: str
    median: float
    low: float
    high: float
    is_ours: bool


@dataclass(frozen=True)
class Chart:
    """Some bars on one scale."""

    title: str
    bars: Sequence[Bar]

    @property
    def height(self) -> int:
        """In the drawing's units."""
        return HEAD + ROW * len(self.bars) + GAP


def charts(every: Iterable[Results]) -> list[Chart]:
    """A chart for each rate that was measured."""
    words = {"ingest": "Requests a second, kept and deduplicated", "process": "Jobs a second"}
    found = []
    for results in every:
        if results.measure not in words:
            continue
        for case in results.cases:
            bars = sorted(_bars(results, case), key=lambda bar: -bar.median)
            if bars:
                found.append(Chart(f"{words[results.measure]}: {case} ({results.store})", bars))
    return found


def _bars(results: Results, case: str) -> Iterable[Bar]:
    for name in results.contenders:
        spread = results.spread(name, case, "rate")
        if spread is not None:
            is_ours = name in {entry.name for entry in ONCEWARD}
            yield Bar(TITLES[name], spread.median, spread.low, spread.high, is_ours)


def draw(found: Sequence[Chart]) -> str:
    """The whole drawing."""
    height = sum(chart.height for chart in found) or 1
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<style>{STYLE}</style>",
    ]
    top = 0
    for chart in found:
        parts += _chart(chart, top)
        top += chart.height
    return "\n".join([*parts, "</svg>", ""])


def _chart(chart: Chart, top: int) -> Iterable[str]:
    yield f'<text class="title" x="0" y="{top + 24}">{escape(chart.title)}</text>'
    scale = (WIDTH - LABELS - VALUES) / max(bar.high for bar in chart.bars)
    for number, bar in enumerate(chart.bars):
        y = top + HEAD + number * ROW
        middle = y + BAR / 2
        kind = "ours" if bar.is_ours else "bar"
        text = f'y="{middle + 4.5:g}"'
        yield f'<text x="{LABELS - 8}" {text} text-anchor="end">{escape(bar.label)}</text>'
        yield (
            f'<rect class="{kind}" x="{LABELS}" y="{y}" width="{bar.median * scale:.1f}" '
            f'height="{BAR}" rx="2"/>'
        )
        low, high = (LABELS + end * scale for end in (bar.low, bar.high))
        yield (f'<line class="ends" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>')
        yield f'<text x="{high + 8:.1f}" {text}>{bar.median:,.0f}</text>'
