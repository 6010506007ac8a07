"""Failpoints trigger at the configured point and count, and are inert otherwise."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.errors import ConfigurationError
from onceward.runtime.failpoints import POINTS, FailpointReached, Failpoints

ROOT = Path(__file__).parents[2]


def test_reaching_points_without_failpoints_does_nothing(subtests: pytest.Subtests) -> None:
    for spec in ("", " ", ",", " , "):
        with subtests.test(spec=spec):
            points = Failpoints(spec)
            for name in POINTS * 3:
                points.reach(name)


def test_a_failpoint_triggers_only_when_its_point_is_reached_for_the_nth_time() -> None:
    points = Failpoints("record.written:raise:3")
    for _ in range(2):
        points.reach("record.written")
        points.reach("record.committed")
    with pytest.raises(FailpointReached, match=r"record\.written"):
        points.reach("record.written")
    points.reach("record.written")


def test_the_count_defaults_to_the_first_time() -> None:
    with pytest.raises(FailpointReached):
        Failpoints("claim.leased:raise").reach("claim.leased")


def test_a_star_matches_every_point() -> None:
    points = Failpoints("*:raise:3")
    points.reach("receive.read")
    points.reach("receive.verified")
    with pytest.raises(FailpointReached, match=r"record\.writing"):
        points.reach("record.writing")


def test_several_failpoints_count_separately() -> None:
    points = Failpoints(" claim.leased:raise:2 , record.written:raise:1 ")
    points.reach("claim.leased")
    with pytest.raises(FailpointReached, match=r"record\.written"):
        points.reach("record.written")
    with pytest.raises(FailpointReached, match=r"claim\.leased"):
        points.reach("claim.leased")


def test_a_failpoint_that_could_never_trigger_is_refused(subtests: pytest.Subtests) -> None:
    for spec, expected in [
        ("record.wirtten:kill:1", "record.written"),
        ("record.written", "kill|stop|raise"),
        ("record.written:explode:1", "kill|stop|raise"),
        ("record.written:kill:soon", "kill|stop|raise"),
        ("record.written:kill:-1", "kill|stop|raise"),
        ("record.written:kill:0", "kill|stop|raise"),
        ("record.written:kill:1:2", "kill|stop|raise"),
    ]:
        with subtests.test(spec=spec):
            with pytest.raises(ConfigurationError) as raised:
                Failpoints(spec)
            assert expected in str(raised.value)


def test_kill_ends_the_process_without_cleanup() -> None:
    script = (
        "from onceward.runtime.failpoints import Failpoints\n"
        "try:\n"
        "    Failpoints('record.written:kill:1').reach('record.written')\n"
        "finally:\n"
        "    print('alive')\n"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert completed.returncode == -signal.SIGKILL
    assert completed.stdout == b""


def test_stop_suspends_the_process_until_it_is_resumed() -> None:
    script = (
        "from onceward.runtime.failpoints import Failpoints\n"
        "Failpoints('record.written:stop:1').reach('record.written')\n"
        "print('alive')\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        stopped = wait_until_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=10)
    assert stopped
    assert out == b"alive\n"


def wait_until_stopped(pid: int) -> bool:
    _, status = os.waitpid(pid, os.WUNTRACED)
    return os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP


def test_the_code_reaches_exactly_the_listed_points() -> None:
    reached = {
        node.args[0].value
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute)
        if node.func.attr == "reach"
        if isinstance(node.args[0], ast.Constant)
    }
    assert reached == set(POINTS)
