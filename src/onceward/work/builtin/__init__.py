"""Built-in handlers, by the names under which presets refer to them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onceward.work.builtin.sns_confirmation import confirm_subscription
from onceward.work.definition.functions import HandlerFunction

BUILTIN_HANDLERS: Final[Mapping[str, HandlerFunction]] = MappingProxyType(
    {"confirm_subscription": confirm_subscription}
)
