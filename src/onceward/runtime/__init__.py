"""Clock, deadlines, timeouts, redaction: used everywhere, and unaware of webhooks."""
