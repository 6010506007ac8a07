"""Decodes with pydantic 2, which is imported only by the models themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from onceward.work.payloads.decoders.decoder import Content
from onceward.work.payloads.decoders.faults import malformed
from onceward.work.payloads.decoders.msgspec_decoder import UNCHECKED
from onceward.work.payloads.decoders.pydantic_faults import describe_errors
from onceward.work.payloads.decoders.pydantic_schema import field_names, for_quick_check

_MAX_COPIED_BYTES: Final = 256 * 1024
"""How much of a body pydantic may copy into errors: it copies an object for each missing field."""


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
        self._quick_check = _make_quick_check(self.schema)

    def decode_json(self, content: Content) -> Any:
        """Decode a JSON document.

        A document whose errors could be large is checked first: validators run twice for it.
        """
        document = UNCHECKED.decode_json(content)
        try:
            if memoryview(content).nbytes * (1 + len(self._names)) > _MAX_COPIED_BYTES:
                self._quick_check(document)
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


def _make_quick_check(schema: Any) -> Callable[[object], object]:
    """Return a check that rejects a decoded document if the model does, for most reasons.

    pydantic copies nothing of a decoded document into its errors. The check is never strict: what
    it accepts may be wrong. A pydantic that cannot build it checks nothing here.
    """
    core: Any = sys.modules["pydantic_core"]
    try:
        # A prebuilt validator would be that of the class, with its own schema.
        validator = core.SchemaValidator(for_quick_check(schema), _use_prebuilt=False)
    except Exception:  # noqa: BLE001 - pydantic before 2.13, or a schema that cannot be changed
        return lambda _: None
    return lambda document: validator.validate_python(document, strict=False)
