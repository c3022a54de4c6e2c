"""The small errors that `mutants` makes in a module, by its syntax tree.

A comparison, a sign or a condition is flipped, a number is off by one, a statement is dropped,
None is returned, a key is misspelled. Annotations, docstrings, messages, logging, decorators,
assertions and ``__repr__`` stay as they are: no test should notice an error there.
"""

import ast
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

OPPOSITE: dict[type[ast.AST], Any] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
EQUALITY = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)

LEFT_ALONE = (ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
FIELDS_LEFT_ALONE = {"annotation", "returns", "decorator_list"}
NOT_RUN = {"TYPE_CHECKING", "__name__ == '__main__'"}
LOGGING = {"print", "debug", "info", "warning", "error", "exception", "warn"}
NO_EFFECT = {"strict", "encoding", "optimize"}
"""Arguments that change nothing in what a correct program computes."""


class Mutation(NamedTuple):
    """One small error: a node of a module's tree, and what takes its place."""

    tree: ast.Module
    node: ast.AST
    new: ast.AST
    parent: ast.AST

    @property
    def line(self) -> int:
        return getattr(self.node, "lineno", 0) or getattr(self.parent, "lineno", 0)

    @property
    def source(self) -> str:
        """The whole module with the error in it."""
        return self._mutated(self.tree)

    @property
    def change(self) -> str:
        """``original -> mutant``; a number is shown with what is around it."""
        shown = self.parent if isinstance(self.node, ast.Constant) else self.node
        both = ast.unparse(shown), self._mutated(shown)
        return " -> ".join(text.partition("\n")[0] for text in both)

    def _mutated(self, around: ast.AST) -> str:
        return ast.unparse(copy.deepcopy(around, {id(self.node): self.new}))


def mutations(source: str) -> Iterator[Mutation]:
    """Every mutation of a module, from its first line to its last."""
    tree = ast.parse(source)
    for node, parent in _mutable(tree, tree):
        for new in _errors(node):
            yield Mutation(tree, node, new, parent)


def _mutable(node: ast.AST, parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Nodes in which a test should notice an error, each with its parent."""
    if _left_alone(node):
        return
    yield node, parent
    if isinstance(node, ast.Raise):  # its words are a message
        return
    for name, value in ast.iter_fields(node):
        if name not in FIELDS_LEFT_ALONE:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _mutable(child, node)


def _left_alone(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.If(test):
            return ast.unparse(test) in NOT_RUN
        case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(_, name))):
            return name in LOGGING
        case ast.keyword(name):
            return name in NO_EFFECT
    return isinstance(node, LEFT_ALONE)


def _errors(node: ast.AST) -> Iterator[ast.AST]:
    """What may take the place of a node."""
    match node:
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
        case ast.Subscript(value, ast.Constant(str(key)), ctx) if ast.unparse(value) != "Literal":
            yield ast.Subscript(value, ast.Constant(f"{key}_"), ctx)
        case ast.Return(value) if value and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call() | ast.Yield()) | ast.Raise() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
    yield from _other_operators(node)
    yield from _other_conditions(node)


def _other_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, ops, right):
            for i, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:i], OPPOSITE[type(op)](), *ops[i + 1 :]], right)
        case ast.BinOp(left, op, right) if type(op) in OPPOSITE and not _text(left, right):
            yield ast.BinOp(left, OPPOSITE[type(op)](), right)
        case ast.AugAssign(target, op, value) if type(op) in OPPOSITE and not _text(value):
            yield ast.AugAssign(target, OPPOSITE[type(op)](), value)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(OPPOSITE[type(op)](), values)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield operand


def _text(*operands: ast.expr) -> bool:
    """Whether any of these is text, of which every sign but ``+`` is an error of its own."""
    return any(
        isinstance(operand, ast.JoinedStr)
        or (isinstance(operand, ast.Constant) and isinstance(operand.value, str))
        for operand in operands
    )


def _other_conditions(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.If(test, body, orelse) | ast.While(test, body, orelse) if _negatable(test):
            yield type(node)(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test, body, orelse) if _negatable(test):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.comprehension(target, source, [test, *more], is_async) if _negatable(test):
            yield ast.comprehension(target, source, [ast.UnaryOp(ast.Not(), test), *more], is_async)


def _negatable(test: ast.expr) -> bool:
    """Whether its negation is another error than those of `_other_operators`."""
    match test:
        case ast.Compare(ops=[op]):
            return not isinstance(op, EQUALITY)
        case ast.UnaryOp(ast.Not()):
            return False
    return True
