"""Expressions in Python's syntax on the fields of a trajectory: ``reward > 0.5 and "timeout" in error``.

They are safe to take from anybody: an expression reads documented fields and calls a few functions, and nothing else.
Its work is bounded, save that of the regular expressions of ``matches``, which can take very long.

None is "not known". It makes each comparison, ``in`` and ``matches`` false (``reward != 1`` too), and arithmetic and
functions with it None; ``reward is None`` and ``reward == None`` ask for it. A key or index that a trajectory lacks is
None.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from rollout_trace._wrong_use import did_you_mean
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import brief
from rollout_trace.view.expression_names import NAMES, PARTS, plain
from rollout_trace.view.expression_values import (
    FUNCTIONS,
    ExpressionError,
    Scope,
    binary,
    check_pattern,
    compare,
    field,
    item,
    items,
    negative,
)

MAX_LENGTH = 10_000
"""Characters of an expression."""
MAX_DEPTH = 100

Value = Callable[[Scope], Any]


class Expression:
    """An expression, ready to be evaluated.

    Raises:
        ExpressionError: it is no expression, uses what is not allowed, or a name that there is not.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._value = _Compiler(text).value

    def value(self, trajectory: Trajectory) -> Any:
        """Returns the expression's value for a trajectory.

        Raises:
            ExpressionError: it cannot be evaluated: a number is compared with a text, a division by zero, ...
        """
        try:
            return self._value(Scope(trajectory))
        except ExpressionError as error:
            raise ExpressionError(
                f"{self.text!r} cannot be evaluated for trajectory {trajectory.id}: {error}"
            ) from None
        except (RecursionError, OverflowError, MemoryError) as error:
            found = f"{type(error).__name__}: a value is too large or too deeply nested."
            raise ExpressionError(
                f"{self.text!r} cannot be evaluated for trajectory {trajectory.id}: {found}"
            ) from None

    def __call__(self, trajectory: Trajectory) -> bool:
        """Returns whether the expression is true for a trajectory. Raises as ``value`` does."""
        return bool(self.value(trajectory))


class _Compiler:
    """Makes a function of an expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._names: list[str] = []
        """Variables of the ``for`` around."""
        if not text.strip():
            raise ExpressionError("the expression is empty; write one such as: reward > 0.5 and n_steps < 20")
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"the expression has {len(text)} characters; at most {MAX_LENGTH} are allowed.")
        self.value = self._compile(self._parse(text.strip()), 0)

    def _parse(self, text: str) -> ast.AST:
        try:
            with warnings.catch_warnings():
                # Of escapes in regular expressions, "\d".
                warnings.simplefilter("ignore")
                return ast.parse(text, mode="eval").body
        except SyntaxError as error:
            near = "" if error.offset is None else f" at character {error.offset}"
            signs = _TEXTS.sub("", text)
            hint = "; did you mean == ?" if _has_single_equals(signs) else ""
            if re.search(r"&&|\|\||!(?!=)", signs):
                hint += "; write and, or, not instead of &&, ||, !"
            raise ExpressionError(
                f"{text!r} is not an expression in Python's syntax{near}: {error.msg}{hint}"
            ) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"{brief(text)} is not an expression: {error or 'nested too deeply'}.") from None

    def _compile(self, node: ast.AST, depth: int) -> Value:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"the expression is nested too deeply: it has more than {MAX_DEPTH} levels.")
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            raise self._refused(node, f"{_part(self._text, node)} is not allowed")
        found: Value = method(node, depth + 1)
        return found

    def _refused(self, node: ast.AST, why: str) -> ExpressionError:
        return ExpressionError(
            f"{self._text!r}: {why}. Allowed are comparisons, and, or, not, in, arithmetic, fields (rewards.x), items "
            f'(rewards["x"]), lists, "... for x in ...", and {", ".join(sorted(FUNCTIONS))}.'
        )

    def _Constant(self, node: ast.Constant, depth: int) -> Value:
        value = node.value
        if not isinstance(value, (str, bool, int, float, type(None))):
            raise self._refused(node, f"{_part(self._text, node)} is not allowed")
        return lambda _: value

    def _Name(self, node: ast.Name, depth: int) -> Value:
        name = node.id
        if name in self._names:
            return lambda scope: scope.variables[name]
        if name not in NAMES:
            raise ExpressionError(_unknown(name, self._text))
        return lambda scope: scope.name(name)

    def _Attribute(self, node: ast.Attribute, depth: int) -> Value:
        name = node.attr
        if isinstance(node.value, ast.Name) and node.value.id in PARTS and node.value.id not in self._names:
            part = PARTS[node.value.id]
            return lambda scope: field(part(scope.trajectory), name)
        value = self._compile(node.value, depth)
        return lambda scope: field(value(scope), name)

    def _Subscript(self, node: ast.Subscript, depth: int) -> Value:
        value, key = self._compile(node.value, depth), self._compile(node.slice, depth)
        return lambda scope: item(value(scope), key(scope))

    def _BoolOp(self, node: ast.BoolOp, depth: int) -> Value:
        values = [self._compile(one, depth) for one in node.values]
        wanted = isinstance(node.op, ast.Or)

        def value(scope: Scope) -> Any:
            found = None
            for one in values:
                found = one(scope)
                if bool(found) is wanted:
                    break
            return found

        return value

    def _UnaryOp(self, node: ast.UnaryOp, depth: int) -> Value:
        value = self._compile(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda scope: not value(scope)
        if isinstance(node.op, ast.USub):
            return lambda scope: negative(value(scope))
        raise self._refused(node, f"{_part(self._text, node)} is not allowed")

    def _BinOp(self, node: ast.BinOp, depth: int) -> Value:
        left, right, do = self._compile(node.left, depth), self._compile(node.right, depth), binary(node.op)
        if do is None:
            raise self._refused(node, f"{_part(self._text, node)} is not allowed")
        return lambda scope: do(left(scope), right(scope))

    def _Compare(self, node: ast.Compare, depth: int) -> Value:
        sides = [node.left, *node.comparators]
        values = [self._compile(one, depth) for one in sides]
        asks_none = [_is_none(left) or _is_none(right) for left, right in pairwise(sides)]
        tests = [compare(op, asks_none=asks) for op, asks in zip(node.ops, asks_none, strict=True)]

        def value(scope: Scope) -> bool:
            left = values[0](scope)
            for test, other in zip(tests, values[1:], strict=True):
                right = other(scope)
                scope.count()
                if not test(left, right):
                    return False
                left = right
            return True

        return value

    def _IfExp(self, node: ast.IfExp, depth: int) -> Value:
        test, body, other = (self._compile(one, depth) for one in (node.test, node.body, node.orelse))
        return lambda scope: body(scope) if test(scope) else other(scope)

    def _List(self, node: ast.List | ast.Tuple | ast.Set, depth: int) -> Value:
        values = [self._compile(one, depth) for one in node.elts]
        return lambda scope: [one(scope) for one in values]

    _Tuple = _Set = _List

    def _Call(self, node: ast.Call, depth: int) -> Value:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise self._refused(node, f"there is no function {_part(self._text, node.func)}")
        function = FUNCTIONS[node.func.id]
        if node.keywords or not function.least <= len(node.args) <= function.most:
            raise ExpressionError(f"{self._text!r}: {node.func.id} is called as {function.usage}.")
        if node.func.id == "matches" and isinstance(node.args[1], ast.Constant):
            check_pattern(node.args[1].value)
        values = [self._compile(one, depth) for one in node.args]

        def value(scope: Scope) -> Any:
            scope.count()
            return function.call(*[one(scope) for one in values])

        return value

    def _GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp, depth: int) -> Value:
        if len(node.generators) != 1 or not isinstance(node.generators[0].target, ast.Name):
            raise self._refused(node, "only one `for` with one name is allowed")
        loop, name = node.generators[0], node.generators[0].target.id
        if name in NAMES or name in self._names or name in FUNCTIONS:
            raise ExpressionError(f"{self._text!r}: {name} has a meaning already; give the variable another name.")
        source = self._compile(loop.iter, depth)
        self._names.append(name)
        tests = [self._compile(one, depth) for one in loop.ifs]
        element = self._compile(node.elt, depth)
        self._names.remove(name)

        def value(scope: Scope) -> list[Any]:
            found = []
            for one in items(source(scope)):
                scope.count()
                scope.variables[name] = plain(one)
                if all(test(scope) for test in tests):
                    found.append(element(scope))
            return found

        return value

    _ListComp = _GeneratorExp


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


_TEXTS = re.compile(r"""\"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.S)


def _has_single_equals(text: str) -> bool:
    for sign in ("==", "!=", "<=", ">=", ":="):
        text = text.replace(sign, "")
    return "=" in text


def _part(text: str, node: ast.AST) -> str:
    try:
        found = ast.unparse(node)
    except (ValueError, RecursionError):
        found = type(node).__name__
    return brief(found)


def _unknown(name: str, text: str) -> str:
    python = {"true": "True", "false": "False", "null": "None", "none": "None"}
    quotes = f'A text is written in quotes: "{name}".'
    meant = did_you_mean(python.get(name.lower(), name), [*NAMES, *python.values()], quotes)
    return f"{text!r}: there is no name {name!r}. {meant} There are: {', '.join(NAMES)}."
