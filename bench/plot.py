"""Results as bar charts in SVG, readable on a light and on a dark page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.deliveries import UNIQUE
from bench.registry import BY_NAME, INGEST, PROCESS, STORE_TITLES
from bench.results import Results
from bench.workloads import WORKLOADS

CHARTED_CASES = {INGEST: (UNIQUE,), PROCESS: WORKLOADS}
CHART_TITLES = {INGEST: "Requests per second", PROCESS: "Jobs per second"}

WIDTH = 820
LABELS_WIDTH = 290
VALUES_WIDTH = 90
BAR_HEIGHT = 16
ROW_HEIGHT = 24
TITLE_HEIGHT = 40
GAP = 18

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 15px; }
.bar { fill: #8c959f; }
.onceward { fill: #1a7f64; }
.range { stroke: #24292f; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .bar { fill: #6e7681; }
  .onceward { fill: #3fb68f; }
  .range { stroke: #e6edf3; }
}
"""


@dataclass(frozen=True)
class Bar:
    """The median and the range of one contender."""

    label: str
    median: float
    low: float
    high: float
    is_onceward: bool


@dataclass(frozen=True)
class Chart:
    """Some bars on one scale."""

    title: str
    bars: Sequence[Bar]

    @property
    def height(self) -> int:
        """The height in pixels."""
        return TITLE_HEIGHT + ROW_HEIGHT * len(self.bars) + GAP


def make_charts(every: Iterable[Results]) -> list[Chart]:
    """Return the charts of all measured rates, the fastest contender first."""
    charts = []
    for results in every:
        for case in CHARTED_CASES.get(results.benchmark, ()):
            bars = sorted(_bars(results, case), key=lambda bar: -bar.median)
            title = f"{CHART_TITLES[results.benchmark]}, {case}, {STORE_TITLES[results.store]}"
            if bars:
                charts.append(Chart(title, bars))
    return charts


def _bars(results: Results, case: str) -> Iterable[Bar]:
    for name in results.contenders:
        spread = results.spread(name, case, "rate")
        if spread is not None:
            contender = BY_NAME[name]
            yield Bar(
                contender.title, spread.median, spread.low, spread.high, contender.is_onceward
            )


def draw(charts: Sequence[Chart]) -> str:
    """Return all charts as one SVG document."""
    height = sum(chart.height for chart in charts) or 1
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<style>{STYLE}</style>",
    ]
    top = 0
    for chart in charts:
        parts += _draw_chart(chart, top)
        top += chart.height
    return "\n".join([*parts, "</svg>", ""])


def _draw_chart(chart: Chart, top: int) -> Iterable[str]:
    yield f'<text class="title" x="0" y="{top + 24}">{escape(chart.title)}</text>'
    scale = (WIDTH - LABELS_WIDTH - VALUES_WIDTH) / max(bar.high for bar in chart.bars)
    for number, bar in enumerate(chart.bars):
        y = top + TITLE_HEIGHT + number * ROW_HEIGHT
        middle = y + BAR_HEIGHT / 2
        style = "onceward" if bar.is_onceward else "bar"
        baseline = f'y="{middle + 4.5:g}"'
        yield (
            f'<text x="{LABELS_WIDTH - 8}" {baseline} text-anchor="end">{escape(bar.label)}</text>'
        )
        yield (
            f'<rect class="{style}" x="{LABELS_WIDTH}" y="{y}" '
            f'width="{bar.median * scale:.1f}" height="{BAR_HEIGHT}" rx="2"/>'
        )
        low, high = (LABELS_WIDTH + end * scale for end in (bar.low, bar.high))
        yield f'<line class="range" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>'
        yield f'<text x="{high + 8:.1f}" {baseline}>{bar.median:,.0f}</text>'
