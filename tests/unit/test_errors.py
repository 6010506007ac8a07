"""The tree of errors at the top of its module."""

import inspect
import re

from onceward import errors

INDENT = 4


def drawn_tree() -> dict[str, str]:
    """Return the parent of each class in the drawing, by name."""
    ancestors: list[str] = []
    parents = {}
    for branch, name in re.findall(r"^([ │├└─]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        if len(branch) < INDENT:
            continue  # prose
        depth = len(branch) // INDENT - 1
        ancestors[depth:] = [name]
        if depth:
            parents[name] = ancestors[depth - 1]
    return parents


def test_the_drawing_has_every_error_below_its_parent() -> None:
    classes = inspect.getmembers(errors, inspect.isclass)
    parents = {
        name: kind.__mro__[1].__name__
        for name, kind in classes
        if issubclass(kind, errors.OncewardError) and kind is not errors.OncewardError
    }
    assert parents == drawn_tree()
