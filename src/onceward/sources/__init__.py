"""Who sends, how a request is proved genuine, and what it is about: pure."""
