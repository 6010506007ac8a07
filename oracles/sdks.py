"""All libraries from PyPI that are asked."""

from typing import Final

from oracles.pypi import development, messaging, payments, standard

ORACLES: Final = (
    *standard.ORACLES,
    *payments.ORACLES,
    *development.ORACLES,
    *messaging.ORACLES,
)
