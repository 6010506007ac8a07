"""An id cache in Redis, with a client of its own."""
