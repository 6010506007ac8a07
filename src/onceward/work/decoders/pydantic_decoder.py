"""Decodes with pydantic 2, which is imported only by the models themselves."""

from __future__ import annotations

import sys
from typing import Any

from onceward.work.decoders.decoder import Content
from onceward.work.decoders.faults import malformed
from onceward.work.decoders.msgspec_decoder import UNCHECKED
from onceward.work.decoders.pydantic_faults import describe_errors
from onceward.work.decoders.pydantic_schema import field_names


class PydanticDecoder:
    """Decodes into a type that contains something of pydantic.

    The JSON goes to pydantic as bytes: Decimals stay exact, and strict models accept what JSON has
    no type for, such as times. It is decoded before that too, because pydantic accepts NaN and
    infinite numbers, which are not JSON.
    """

    def __init__(self, model: Any) -> None:
        pydantic: Any = sys.modules["pydantic"]
        if not hasattr(getattr(pydantic, "TypeAdapter", None), "validate_strings"):
            raise TypeError(f"pydantic {pydantic.VERSION} is too old; install 2.5 or newer")
        adapter = pydantic.TypeAdapter(model)
        self.schema = adapter.core_schema
        """The schema that pydantic made of the model."""
        self._json_schema = adapter.json_schema
        self._validate_json = adapter.validate_json
        self._validate_strings = adapter.validate_strings
        self._error_type: type[Exception] = pydantic.ValidationError
        self._names = field_names(self.schema)

    def decode_json(self, content: Content) -> Any:
        """Decode a JSON document."""
        document = UNCHECKED.decode_json(content)
        try:
            return self._validate_json(bytes(content))
        except self._error_type as error:
            fault = describe_errors(error, document, self._names)
        raise malformed(fault)

    def decode_form(self, fields: dict[str, str]) -> Any:
        """Decode the fields of a form."""
        try:
            return self._validate_strings(fields)
        except self._error_type as error:
            fault = describe_errors(error, fields, self._names)
        raise malformed(fault)

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the model."""
        schema: dict[str, Any] = self._json_schema()
        return schema
