"""Mutants of Python modules: small changes of the syntax tree, as edits of the text."""

import ast
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

from mutants.mutant import Mutant
from mutants.targets import ROOT

# Calls that only log, warn or mark a failpoint.
LOGGING: Final = {"critical", "debug", "error", "exception", "info", "warning"}
MESSAGE_CALLS: Final = {*LOGGING, "_report", "_warn", "add_note", "reach", "warn"}
BOUNDARIES: Final = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
OPPOSITES: Final = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
EXTREMES: Final = {"min": "max", "max": "min"}

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Change = tuple[ast.expr | ast.stmt, str, str]
"""The node to replace, the kind of the change, and the new text."""


class Source:
    """The text of a module, by the nodes of its syntax tree."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self.tree = ast.parse(text)
        self._starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node starts and ends, in bytes."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self._text[start:end].decode()


def python_mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    source = Source((ROOT / path).read_bytes())
    for node, parents in _walk(source.tree, ()):
        for changed, kind, after in _changes(node, parents, source):
            yield Mutant(
                path=str(path),
                line=changed.lineno,
                kind=kind,
                before=source.text(changed),
                after=after,
                start=source.span(changed)[0],
                scope=_scope((*parents, node)),
            )


def _scope(nodes: tuple[ast.AST, ...]) -> str:
    """Return the name of the function that contains a node, or of the module's constant."""
    if names := [node.name for node in nodes if isinstance(node, Scope)]:
        return ".".join(names)
    match nodes[1]:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return "module"


def _changes(node: ast.AST, parents: tuple[ast.AST, ...], source: Source) -> Iterator[Change]:
    match node:
        case ast.stmt():
            yield from _dropped(node, parents)
            if isinstance(node, ast.If | ast.While):
                yield from _inverted(node.test, source)
        case ast.comprehension():
            for test in node.ifs:
                yield from _inverted(test, source)
        case ast.IfExp():
            yield from _inverted(node.test, source)
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp():
            yield from _decided(node, source, is_test=_is_test(node, parents))
        case ast.Constant(value=bool() | int() | float()):
            yield from _moved(node, parents[-1])
        case ast.Name(id=("min" | "max") as name) if isinstance(parents[-1], ast.Call):
            yield node, "swap min/max", EXTREMES[name]


def _decided(node: ast.expr, source: Source, *, is_test: bool) -> Iterator[Change]:
    """Yield the changes of an expression that decides. A whole condition is inverted elsewhere."""
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=[right]):
            sides = source.text(left), source.text(right)
            if (boundary := BOUNDARIES.get(type(operator))) is not None:
                yield node, "move a boundary", f"({sides[0]} {boundary} {sides[1]})"
            elif not is_test and (opposite := OPPOSITES.get(type(operator))) is not None:
                yield node, "invert a comparison", f"({sides[0]} {opposite} {sides[1]})"
        case ast.BoolOp():
            swapped = " or " if isinstance(node.op, ast.And) else " and "
            joined = swapped.join(f"({source.text(value)})" for value in node.values)
            yield node, "swap and/or", f"({joined})"
        case ast.UnaryOp(op=ast.Not()) if not is_test:
            yield node, "drop not", f"({source.text(node.operand)})"


def _moved(node: ast.Constant, parent: ast.AST) -> Iterator[Change]:
    match node.value:
        case bool() as flag:
            if isinstance(parent, ast.keyword | ast.Return | ast.Assign):
                yield node, "flip a flag", str(not flag)
        case int() as number:
            yield node, "move a number", str(number + 1)
        case float() as number:
            yield node, "move a number", str(number * 2)


def _walk(
    node: ast.AST, parents: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Yield each node that does something, with its parents, and leave out messages and types."""
    for child in ast.iter_child_nodes(node):
        if _is_message(child) or _is_type(child, node):
            continue
        yield child, (*parents, node)
        yield from _walk(child, (*parents, node))


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):  # a docstring
            return True
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(call, ast.Call) and _called(call) in MESSAGE_CALLS
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Call) and _called(node) in {"LogFields", "TypeVar", "cast"}
    )


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_type(child: ast.AST, parent: ast.AST) -> bool:
    match parent:
        case ast.AnnAssign():
            return child is parent.annotation
        case ast.arg():
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return child is parent.returns or child in parent.decorator_list
        case ast.ClassDef():
            return child not in parent.body
    return False


def _is_test(node: ast.AST, parents: tuple[ast.AST, ...]) -> bool:
    """Return whether a node is a whole condition: it is inverted as such."""
    return isinstance(parents[-1], ast.If | ast.While | ast.IfExp) and parents[-1].test is node


def _inverted(test: ast.expr, source: Source) -> Iterator[Change]:
    if not isinstance(test, ast.Constant):
        yield test, "invert a condition", f"(not ({source.text(test)}))"


def _dropped(node: ast.stmt, parents: tuple[ast.AST, ...]) -> Iterator[Change]:
    function = next(
        (
            each
            for each in parents[::-1]
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
        None,
    )
    if function is None:
        return
    match node:
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield node, "drop a call", "pass"
        case ast.Raise() | ast.Continue() | ast.Break():
            yield node, f"drop {type(node).__name__.lower()}", "pass"
        case ast.Return() if node is not function.body[-1]:
            yield node, "drop return", "pass"
        case ast.AugAssign() | ast.Delete():
            yield node, "drop a side effect", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() | ast.Tuple()]) if (
            function.name != "__init__" and not _defines_names(node)
        ):
            yield node, "drop a side effect", "pass"


def _defines_names(node: ast.Assign) -> bool:
    return isinstance(node.targets[0], ast.Tuple) and any(
        isinstance(each, ast.Name) for each in node.targets[0].elts
    )
