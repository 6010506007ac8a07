"""Which handlers are quick enough for a batch, and how many jobs it has."""

from onceward.work.batching import QUICK_SECONDS, SLOW_SECONDS, AdaptiveBatchSize, HandlerLatency


def test_one_slow_run_is_forgiven_and_several_are_not() -> None:
    latency = HandlerLatency()
    for _ in range(10):
        latency.observe(QUICK_SECONDS / 10)
    latency.observe(QUICK_SECONDS * 100)
    assert latency.is_quick
    for _ in range(3):
        latency.observe(QUICK_SECONDS * 100)
    assert not latency.is_quick


def test_only_the_time_besides_statements_counts_unless_the_run_was_slow() -> None:
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
    assert batch.size == 10, "a short batch says nothing about the size"
    batch.failed()
    batch.committed(batch.size)
    assert batch.size == 6, "half as many, then one more with each commit"
    for _ in range(5):
        batch.failed()
    assert batch.size == 1
