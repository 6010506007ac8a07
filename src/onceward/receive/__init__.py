"""From a request to a durable receipt."""
