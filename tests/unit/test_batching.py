"""Quick handlers share a batch, whose size adapts to commits and failures."""

from onceward.work.running.batching import (
    QUICK_SECONDS,
    SLOW_SECONDS,
    AdaptiveBatchSize,
    HandlerLatency,
)


def test_a_handler_stays_quick_after_one_slow_run_but_not_after_several() -> None:
    latency = HandlerLatency()
    for _ in range(10):
        latency.observe(QUICK_SECONDS / 10)
    latency.observe(QUICK_SECONDS * 100)
    assert latency.is_quick
    for _ in range(3):
        latency.observe(QUICK_SECONDS * 100)
    assert not latency.is_quick


def test_time_in_statements_counts_only_in_a_slow_run() -> None:
    in_statements, in_python, slow = HandlerLatency(), HandlerLatency(), HandlerLatency()
    for _ in range(5):
        in_statements.observe(QUICK_SECONDS * 3, QUICK_SECONDS * 2.5)
        in_python.observe(QUICK_SECONDS * 3, QUICK_SECONDS)
        slow.observe(SLOW_SECONDS * 2, SLOW_SECONDS * 2)
    assert (in_statements.is_quick, in_python.is_quick, slow.is_quick) == (True, False, False)


def test_the_batch_size_grows_with_commits_and_halves_with_failures() -> None:
    batch = AdaptiveBatchSize(10)
    sizes = []
    for _ in range(4):
        batch.committed(batch.size)
        sizes.append(batch.size)
    assert sizes == [4, 8, 10, 10]
    batch.committed(3)
    assert batch.size == 10, "a batch below the size does not change it"
    batch.failed()
    batch.committed(batch.size)
    assert batch.size == 6, "halved, then one more with each commit"
    for _ in range(5):
        batch.failed()
    assert batch.size == 1
