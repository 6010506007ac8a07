"""The HTTP server: uvicorn with our own connection protocol."""
