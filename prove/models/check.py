"""The check of all models: with every rule they hold, and without any one of them they do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from prove.models.catalogue import PROTOCOLS, Configuration, ModelledProtocol
from prove.models.search import Search, search


@dataclass(frozen=True)
class Holding:
    """The search of one size, with all rules."""

    configuration: str
    search: Search
    seconds: float

    @property
    def is_green(self) -> bool:
        """Return whether every state was searched, and none breaks a promise."""
        return self.search.is_complete and not self.search.violation


@dataclass(frozen=True)
class Counterexample:
    """The search without one rule, or with one limit: it must find harm."""

    name: str
    sentence: str
    configuration: str
    search: Search

    @property
    def is_green(self) -> bool:
        """Return whether the rule is needed, or the limit is one."""
        return bool(self.search.violation)


@dataclass
class ProtocolResult:
    """The searches of one protocol."""

    promises: str
    held: list[Holding] = field(default_factory=list)
    rules: list[Counterexample] = field(default_factory=list)
    limits: list[Counterexample] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_green(self) -> bool:
        """Return whether all searches ended as they must."""
        return not any(self.findings())

    @property
    def states(self) -> int:
        """Return how many states were searched with all rules."""
        return sum(result.search.states for result in self.held)

    def findings(self) -> Iterator[str]:
        """Yield each search that did not end as it must."""
        for held in self.held:
            if not held.is_green:
                yield f"{held.configuration}: {held.search}"
        for what, results in (("rule", self.rules), ("limit", self.limits)):
            for result in results:
                if not result.is_green:
                    yield f"no harm shows the {what} {result.name}: {result.search}"

    def summary(self) -> dict[str, Any]:
        """Return the counts and the findings as JSON types."""
        return {
            "states": self.states,
            "rules": len(self.rules),
            "limits": len(self.limits),
            "seconds": round(self.seconds, 1),
            "findings": list(self.findings()),
        }

    def as_json(self) -> dict[str, Any]:
        """Return every search as JSON types."""
        return self.summary() | {
            "held": [asdict(result) for result in self.held],
            "rules": [asdict(result) for result in self.rules],
            "limits": [asdict(result) for result in self.limits],
        }


@dataclass
class ModelsResult:
    """The result of all models."""

    protocols: dict[str, ProtocolResult] = field(default_factory=dict)

    @property
    def is_green(self) -> bool:
        """Return whether every model holds, and every rule is needed."""
        return all(result.is_green for result in self.protocols.values())

    def summary(self) -> dict[str, Any]:
        """Return the counts and the findings as JSON types."""
        return {name: result.summary() for name, result in self.protocols.items()}

    def as_json(self) -> dict[str, Any]:
        """Return every search as JSON types."""
        return {name: result.as_json() for name, result in self.protocols.items()}


Progress = Callable[[int, int], None]
"""Called with the number of searches that have ended, and of all."""


def check_models(
    *,
    is_long: bool,
    protocols: Mapping[str, ModelledProtocol] = PROTOCOLS,
    progress: Progress = lambda _done, _total: None,
) -> ModelsResult:
    """Search every model with all rules, and again without each of them."""
    total = sum(
        len(protocol.configurations(is_long=is_long)) + len(protocol.rules) + len(protocol.limits)
        for protocol in protocols.values()
    )
    done = 0
    result = ModelsResult()
    for name, protocol in protocols.items():
        started = time.monotonic()
        found = result.protocols[name] = ProtocolResult(protocol.promises)
        for _ in _searches(protocol, found, is_long=is_long):
            done += 1
            progress(done, total)
        found.seconds = time.monotonic() - started
    return result


def _searches(
    protocol: ModelledProtocol, result: ProtocolResult, *, is_long: bool
) -> Iterator[None]:
    """Add the searches of a protocol to its result, one at a time."""
    for configuration in protocol.configurations(is_long=is_long):
        result.held.append(hold(configuration))
        yield
    for rule, configuration in protocol.rules.items():
        result.rules.append(remove(rule, configuration))
        yield
    for limit, configuration in protocol.limits.items():
        result.limits.append(exceed(limit, configuration))
        yield


def hold(configuration: Configuration) -> Holding:
    """Search a model with all its rules."""
    started = time.monotonic()
    found = search(configuration.model())
    return Holding(str(configuration), found, round(time.monotonic() - started, 1))


def remove(rule: StrEnum, configuration: Configuration) -> Counterexample:
    """Search a model without one of its rules."""
    found = search(configuration.model([rule]))
    return Counterexample(name_of(rule), rule.value, str(configuration), found)


def exceed(limit: StrEnum, configuration: Configuration) -> Counterexample:
    """Search a model with all its rules and a fault that they do not cover."""
    found = search(configuration.model([], [limit]))
    return Counterexample(name_of(limit), limit.value, str(configuration), found)


def name_of(entry: StrEnum) -> str:
    """Return the name of a rule or a limit, as the command line spells it."""
    return entry.name.lower().replace("_", "-")
