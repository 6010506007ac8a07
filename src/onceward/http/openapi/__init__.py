"""The OpenAPI document of the service."""
