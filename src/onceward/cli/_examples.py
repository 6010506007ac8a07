"""The example request of each preset, for ``onceward send``."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import msgspec

from onceward.sources.examples import Example, make_example
from onceward.sources.outgoing import OutgoingRequest
from onceward.sources.presets import Preset


@lru_cache
def load_examples() -> dict[str, Example]:
    """Return the bundled examples by preset name."""
    text = files("onceward.sources.presets").joinpath("examples.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Example])


def example_request(
    preset: Preset,
    *,
    url: str,
    id: str | None = None,
    type: str | None = None,
    body: bytes | None = None,
) -> OutgoingRequest:
    """Return a preset's example request, not yet signed. Raises ConfigurationError."""
    example = load_examples().get(preset.name)
    return make_example(preset, example, url=url, id=id, type=type, body=body)
