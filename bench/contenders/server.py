"""The HTTP server of every contender but Onceward and the bare protocol, which bring their own."""

from typing import Any

import uvicorn

HOST = "127.0.0.1"
BACKLOG = 4_096


def run_server(app: Any, port: int, **options: Any) -> None:
    """Run uvicorn as in production: uvloop, httptools, no access log."""
    uvicorn.run(
        app,
        host=HOST,
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        backlog=BACKLOG,
        **options,
    )
