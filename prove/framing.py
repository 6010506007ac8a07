"""Where each request of a stream begins and ends: the server compared with h11.

The rules: the server never receives a message that h11 does not, refuses what h11 refuses, and its
messages depend neither on how the stream is cut into reads nor on how they are handled. It may
refuse more than h11 does; those refusals are counted by category.
"""

import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import h11

from prove.in_process import Message, Outcome, Player, Run
from prove.request_streams import Stream, make_cuts, make_stream
from prove.shrink import Case, shrink

BATCH_STREAMS = 40
MAX_FAILURES = 20
"""One example of each rule is reduced and printed."""
MIN_ACCEPTED_SHARE = 0.6
"""The share of the streams accepted by h11 that the server must accept too."""
NO_SIZE_LIMIT = 2**40

_BLANK_LINES = re.compile(rb"\A(?:\r\n)*(?:\r\Z)?")
_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")
"""h11 merges and normalises the values of these."""


@dataclass(frozen=True)
class Expected:
    """What h11 makes of a stream."""

    messages: tuple[Message, ...]
    refusal: str = ""
    closes: bool = False
    """Whether the last message asks for the connection to be closed."""

    @property
    def cause(self) -> str:
        """Return the refusal as the end of a sentence."""
        return f", h11: {self.refusal}" if self.refusal else ""


@dataclass(frozen=True)
class Failure:
    """A rule that was broken, and a stream reduced as far as it still breaks it."""

    number: int
    rule: str
    case: Case

    def __str__(self) -> str:
        way = "directly" if self.case.is_direct else "through ASGI"
        return (
            f"stream {self.number}, handled {way}: {self.rule}\n"
            f"    data = {self.case.data!r}\n    cuts = {self.case.cuts!r}"
        )


@dataclass
class FramingResult:
    """The streams compared, the refusals that h11 does not share, and the failures."""

    seed: int
    streams: int = 0
    messages: int = 0
    accepted_by_h11: int = 0
    accepted_by_both: int = 0
    refused_by_both: int = 0
    only_refused_here: Counter[str] = field(default_factory=Counter)
    broken_rules: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def accepted_share(self) -> float:
        """Return the share of the streams accepted by h11 that the server accepts."""
        return self.accepted_by_both / max(1, self.accepted_by_h11)

    @property
    def is_green(self) -> bool:
        """Return whether no rule was broken and enough streams were accepted."""
        return not self.broken_rules and self.accepted_share >= MIN_ACCEPTED_SHARE

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "streams": self.streams,
            "messages": self.messages,
            "refused_by_both": self.refused_by_both,
            "accepted_by_h11": self.accepted_by_h11,
            "accepted_by_both": self.accepted_by_both,
            "only_refused_here": dict(self.only_refused_here.most_common()),
            "broken_rules": dict(self.broken_rules.most_common()),
            "failures": [str(failure) for failure in self.failures],
        }


# The oracle.


def expect(data: bytes) -> Expected:
    """Return what h11 makes of a stream, with an answer to each message."""
    messages: list[Message] = []
    while True:
        data = _without_blank_lines(data)
        if not data:
            return Expected(tuple(messages))
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=NO_SIZE_LIMIT)
        connection.receive_data(data)
        try:
            message = _next_message(connection)
        except h11.RemoteProtocolError as error:
            return Expected(tuple(messages), refusal=str(error).partition(":")[0])
        if message is None:
            return Expected(tuple(messages))
        messages.append(message)
        if connection.their_state is h11.MUST_CLOSE:
            return Expected(tuple(messages), closes=True)
        data, _ = connection.trailing_data


def _without_blank_lines(data: bytes) -> bytes:
    """Return what follows the empty lines before a request: servers ignore them (RFC 9112, 2.2)."""
    return _BLANK_LINES.sub(b"", data, count=1)


def _next_message(connection: h11.Connection) -> Message | None:
    """Return the next message, or None if it is not complete. Decline an offered upgrade."""
    request: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        match event:
            case h11.Request():
                request = event
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                break
            case _:
                return None
    assert request is not None
    status = 405 if request.method == b"CONNECT" else 200
    connection.send(h11.Response(status_code=status, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    headers = tuple((name, value) for name, value in request.headers)
    return Message(request.method, request.target, body, headers)


def origin_form(target: bytes) -> bytes:
    """Return the path and query of a target, as an application gets them."""
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.isalpha():
        slash = rest.find(b"/")
        target = rest[slash:] if slash >= 0 else b""
    path, _, query = target.partition(b"#")[0].partition(b"?")
    return path + (b"?" + query if query else b"")


def _comparable_headers(message: Message) -> list[tuple[bytes, bytes]]:
    return [
        (name, value.strip(b" \t"))
        for name, value in message.headers
        if name not in _FRAMING_HEADERS
    ]


# The rules.


def broken_rules(expected: Expected, outcome: Outcome) -> Iterator[str]:
    """Yield each rule that an outcome breaks; one may be yielded repeatedly."""
    yield from _wrong_messages(expected, outcome)
    yield from _wrong_end(expected, outcome)
    yield from _wrong_responses(outcome)


def _wrong_messages(expected: Expected, outcome: Outcome) -> Iterator[str]:
    if len(outcome.messages) > len(expected.messages):
        yield f"a message that h11 does not receive{expected.cause}"
    for theirs, ours in zip(expected.messages, outcome.messages, strict=False):
        yield from _differences(theirs, ours)
    if not outcome.is_closed and len(outcome.messages) < len(expected.messages):
        yield "a message is missing"


def _wrong_end(expected: Expected, outcome: Outcome) -> Iterator[str]:
    if outcome.is_stalled:
        # A reset at the close would take the response from a sender that has not read it.
        yield "the rest is not read" + (" after a refusal" if outcome.is_closed else "")
    if expected.refusal and not outcome.is_closed:
        yield f"not refused{expected.cause}"
    if expected.closes and not outcome.is_closed:
        yield "open after a message that asks for a close"
    if outcome.errors and not outcome.is_closed:
        yield "open after a refusal"


def _wrong_responses(outcome: Outcome) -> Iterator[str]:
    labels = [message.label for message in outcome.messages]
    if outcome.responses != labels:
        is_short = outcome.responses == labels[: len(outcome.responses)]
        yield "a message got no response" if is_short else "responses are out of order"
    if outcome.unparsed:
        yield "half a response"
    if len(outcome.errors) > 1 or any(status < 400 for status in outcome.errors):
        yield "more than one refusal"


def _differences(theirs: Message, ours: Message) -> Iterator[str]:
    if ours.body != theirs.body:
        yield "a body differs"
    if ours.method != theirs.method or ours.target != origin_form(theirs.target):
        yield "a request line differs"
    expected, headers = _comparable_headers(theirs), _comparable_headers(ours)
    if len(headers) > len(expected):
        yield "headers were added"
    elif headers != expected:
        yield "headers were changed"


def is_refused(expected: Expected, outcome: Outcome) -> bool:
    """Return whether the server refused a part of a stream."""
    is_complete = len(outcome.messages) >= len(expected.messages)
    return bool(outcome.errors) or (outcome.is_closed and not (expected.closes and is_complete))


def _differs(first: Outcome, second: Outcome) -> bool:
    return first.messages != second.messages or first.is_closed != second.is_closed


# Playing and comparing.


def reads_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Return the data cut at the positions."""
    edges = [0, *cuts, len(data)]
    return [data[start:end] for start, end in pairwise(edges) if end > start]


def check_streams(
    seed: int, count: int, progress: Callable[[int], None] | None = None
) -> FramingResult:
    """Compare `count` streams made from a seed."""
    with _quiet_log(), asyncio.Runner() as runner:
        return runner.run(_Comparison(seed).check(count, progress or (lambda _: None)))


def check_every_cut(data: bytes) -> dict[str, Case]:
    """Return an example of each rule that a stream breaks, cut once at every position."""
    every = [(), *((cut,) for cut in range(1, len(data))), tuple(range(1, len(data)))]
    cases = [Case(data, cuts, is_direct=is_direct) for cuts in every for is_direct in (True, False)]
    with _quiet_log(), asyncio.Runner() as runner:
        return _broken_by_any(cases, runner.run(_play(Player(), cases)))


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Drop warnings: the server logs one for each malformed request."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


async def _play(player: Player, cases: Sequence[Case]) -> list[Outcome]:
    return await player.play([Run(reads_of(c.data, c.cuts), c.is_direct) for c in cases])


def _broken_by_any(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> dict[str, Case]:
    """Return the rules that the outcomes of one stream break, each with its first case."""
    expected = expect(cases[0].data)
    broken: dict[str, Case] = {}
    for case, outcome in zip(cases, outcomes, strict=True):
        for rule in broken_rules(expected, outcome):
            broken.setdefault(rule, case)
        if _differs(outcome, outcomes[0]):
            broken.setdefault("the reads or the way of handling change the messages", case)
    return broken


class _Comparison:
    """The comparison of many streams, in batches."""

    def __init__(self, seed: int) -> None:
        self._result = FramingResult(seed)
        self._player = Player()

    async def check(self, count: int, progress: Callable[[int], None]) -> FramingResult:
        numbers = iter(range(count))
        while batch := list(islice(numbers, BATCH_STREAMS)):
            await self._check_batch(batch)
            self._result.streams += len(batch)
            progress(self._result.streams)
        return self._result

    async def _check_batch(self, numbers: Sequence[int]) -> None:
        streams = [make_stream(self._result.seed, number) for number in numbers]
        cases = [
            self._cases(number, stream) for number, stream in zip(numbers, streams, strict=True)
        ]
        outcomes = iter(await _play(self._player, [case for group in cases for case in group]))
        for number, stream, group in zip(numbers, streams, cases, strict=True):
            played = list(islice(outcomes, len(group)))
            for rule, case in _broken_by_any(group, played).items():
                await self._add(number, rule, case)
            self._count(stream, expect(stream.data), played[0])

    def _cases(self, number: int, stream: Stream) -> list[Case]:
        """Return the ways to play a stream: in one read, and cut, directly and through ASGI."""
        rng = random.Random(f"{self._result.seed}/{number}/cuts")  # noqa: S311 - reproducible
        data = stream.data
        return [
            Case(data, (), is_direct=True),
            Case(data, make_cuts(rng, data), is_direct=True),
            Case(data, (), is_direct=False),
            Case(data, make_cuts(rng, data), is_direct=False),
        ]

    async def _add(self, number: int, rule: str, case: Case) -> None:
        """Count a broken rule, and reduce its first example."""
        self._result.broken_rules[rule] += 1
        is_first = self._result.broken_rules[rule] == 1
        if not is_first or len(self._result.failures) >= MAX_FAILURES:
            return

        async def still_fails(smaller: Case) -> bool:
            ways = [Case(smaller.data, (), is_direct=is_direct) for is_direct in (True, False)]
            cases = [smaller, *ways]
            return rule in _broken_by_any(cases, await _play(self._player, cases))

        self._result.failures.append(Failure(number, rule, await shrink(case, still_fails)))

    def _count(self, stream: Stream, expected: Expected, outcome: Outcome) -> None:
        result = self._result
        result.messages += len(outcome.messages)
        refused = is_refused(expected, outcome)
        if expected.refusal:
            result.refused_by_both += refused
            return
        result.accepted_by_h11 += 1
        result.accepted_by_both += not refused
        if refused:
            status = str(outcome.errors[0]) if outcome.errors else "closed"
            category = stream.category(len(outcome.messages))
            result.only_refused_here[f"{category} ({status})"] += 1
