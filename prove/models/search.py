"""A breadth-first search through every state that a model can reach."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

State = TypeVar("State", bound=Hashable)

MAX_STATES = 5_000_000
"""A search that finds more is given up: a million states take about half a gigabyte."""


class Model(Protocol[State]):
    """A protocol as a state machine. Each step is atomic; any step may come next."""

    def initial(self) -> State:
        """Return the state in which all begins."""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every step that is possible: who does what, and the state that follows."""

    def violation(self, state: State) -> str:
        """Return the promise that the state breaks, or an empty text."""


@dataclass(frozen=True)
class Search:
    """What a search found."""

    states: int
    is_complete: bool
    """Whether every reachable state was searched. False after a violation, or at the limit."""
    violation: str = ""
    trace: tuple[str, ...] = ()
    """The shortest way to the violation, one step an item."""

    def __str__(self) -> str:
        if self.violation:
            return f"{'; '.join(self.trace)}: {self.violation}"
        if self.is_complete:
            return f"holds in all {self.states:,} states"
        return f"given up after {self.states:,} states, without a violation so far"


def search(model: Model[State], max_states: int = MAX_STATES) -> Search:
    """Search until a promise is broken, no state is left, or `max_states` are reached."""
    start = model.initial()
    origins: dict[State, tuple[State, str] | None] = {start: None}
    states = [start]  # grows while it is read: the states in the order of their distance
    for state in states:
        for step, successor in model.steps(state):
            if successor in origins:
                continue
            origins[successor] = state, step
            if violation := model.violation(successor):
                trace = _trace(origins, successor)
                return Search(len(origins), is_complete=False, violation=violation, trace=trace)
            states.append(successor)
        if len(origins) > max_states:
            return Search(len(origins), is_complete=False)
    return Search(len(origins), is_complete=True)


def _trace(origins: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps = []
    while origin := origins[state]:
        state, step = origin
        steps.append(step)
    return tuple(reversed(steps))
