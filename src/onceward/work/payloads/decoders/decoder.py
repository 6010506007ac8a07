"""The interface of the libraries that decode payloads into models."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

Content = bytes | msgspec.Raw
"""A JSON document, or a part of one."""


class Decoder(Protocol):
    """Decodes payloads into one model. Its decode methods raise MalformedPayload."""

    def decode_json(self, content: Content) -> Any:
        """Decode a JSON document."""

    def decode_form(self, fields: dict[str, str]) -> Any:
        """Decode the fields of a form, whose values are all strings."""

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the model. It may raise any error: some types have none."""
