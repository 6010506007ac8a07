"""How many jobs share a transaction, and which may."""

from onceward.work.batching import LONG_SECONDS, QUICK_SECONDS, AdaptiveBatchSize, HandlerLatency


def test_a_handler_that_becomes_slow_is_no_longer_quick() -> None:
    pace = HandlerLatency()
    for _ in range(10):
        pace.note(QUICK_SECONDS / 10)
    pace.note(QUICK_SECONDS * 100)
    assert pace.is_quick  # once may be the machine's fault
    for _ in range(3):
        pace.note(QUICK_SECONDS * 100)
    assert not pace.is_quick


def test_only_what_a_handler_does_beside_its_statements_counts() -> None:
    waiting, working, hogging = HandlerLatency(), HandlerLatency(), HandlerLatency()
    for _ in range(5):
        waiting.note(QUICK_SECONDS * 3, QUICK_SECONDS * 2.5)
        working.note(QUICK_SECONDS * 3, QUICK_SECONDS)
        hogging.note(LONG_SECONDS * 2, LONG_SECONDS * 2)
    assert (waiting.is_quick, working.is_quick, hogging.is_quick) == (True, False, False)


def test_turns_grow_while_they_go_well_and_shrink_when_they_break() -> None:
    share = AdaptiveBatchSize(10)
    sizes = []
    for _ in range(4):
        share.went_well(share.size)
        sizes.append(share.size)
    assert sizes == [4, 8, 10, 10]
    share.went_well(3)  # there were no more: that says nothing
    assert share.size == 10
    share.broke()
    share.went_well(share.size)
    assert share.size == 6, "half as many, and then one more each time"
    for _ in range(5):
        share.broke()
    assert share.size == 1
