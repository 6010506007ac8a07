"""The stages of the queue: order, limits, pauses, cancels, shares and recovery."""
