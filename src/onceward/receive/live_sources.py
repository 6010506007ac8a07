"""The sources of a process, with the secrets that their senders provisioned."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from onceward.errors import LedgerUnavailable, StoreError, UnusableSecret
from onceward.ports import SecretStore
from onceward.runtime.log_fields import LogFields
from onceward.runtime.redact import redact
from onceward.sources.source import Source

_log = logging.getLogger("onceward.receive")

MAX_PROVISIONED_SECRETS: Final = 20
"""The most provisioned secrets of a source. Each subscription at a provider has one of its own, so
another one is refused: it must not push out a secret that is in use.
"""


_FULL: Final = (
    "source %s: a new secret was refused, because %d are stored; if old ones are no longer in use, "
    "run `onceward secrets APP --forget %s` and subscribe again"
)


class LiveSources:
    """The configured sources, kept current with provisioned secrets."""

    def __init__(self, configured: Mapping[str, Source], store: SecretStore) -> None:
        self._configured = configured
        self._store = store
        self.by_name = dict(configured)
        """The sources as they are now; updated in place."""
        self.secrets: list[bytes] = []
        """Every secret seen so far. Error texts are redacted with them."""
        for source in configured.values():
            self._add_secrets(source)

    @property
    def can_be_provisioned(self) -> bool:
        """Whether the sender of any source may provision its secret."""
        return any(source.provisions_secret for source in self._configured.values())

    async def refresh(self) -> None:
        """Load the secrets that senders provisioned through any process."""
        if not self.can_be_provisioned:
            return
        secrets: dict[str, list[bytes]] = {}
        for provisioned in await self._store.provisioned_secrets():  # the newest first
            secrets.setdefault(provisioned.source, []).append(provisioned.secret)
        for name, source in self._configured.items():
            if source.provisions_secret:
                oldest = secrets.get(name, [])[-MAX_PROVISIONED_SECRETS:]
                self._replace(source.with_secrets(oldest))

    async def store_secret(self, name: str, secret: bytes) -> None:
        """Store a provisioned secret and accept it. Raise UnusableSecret or LedgerUnavailable."""
        current, configured = self.by_name[name], self._configured[name]
        source = current.with_secrets([secret])
        if secret not in source.secrets:
            raise UnusableSecret("This cannot be a secret of the source.")
        if len(source.secrets) > len(configured.secrets) + MAX_PROVISIONED_SECRETS:
            _log.warning(_FULL, name, MAX_PROVISIONED_SECRETS, name, extra=LogFields(source=name))
            raise UnusableSecret("The source has too many secrets.")
        try:
            await self._store.store_secret(name, secret)
        except StoreError as error:
            reason = redact(str(error))
            fields = LogFields(source=name, error=reason)
            _log.warning("source %s: cannot store its new secret: %s", name, reason, extra=fields)
            raise LedgerUnavailable("The ledger cannot be written now.") from error
        self._replace(source)
        message = "source %s: its sender provisioned a secret; see `onceward secrets`"
        _log.info(message, name, extra=LogFields(source=name))

    def _replace(self, source: Source) -> None:
        self.by_name[source.name] = source
        self._add_secrets(source)

    def _add_secrets(self, source: Source) -> None:
        self.secrets += [secret for secret in source.secrets if secret not in self.secrets]
