"""What speaks HTTP: receiving as raw ASGI, the admin API, and the server under both."""
