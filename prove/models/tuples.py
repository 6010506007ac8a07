"""The tuples that make up a state."""

from typing import TypeVar

Item = TypeVar("Item")


def replace_item(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    """Return the items with another one at this place."""
    return (*items[:index], item, *items[index + 1 :])
