"""HTTP: the receiving app as raw ASGI, the admin app, and the server that runs both."""
