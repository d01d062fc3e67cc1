"""Operations of expressions on values: fields, items, comparisons, arithmetic and functions, all bounded."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import brief
from rollout_trace.errors import RolloutTraceError
from rollout_trace.view.expression_names import FIELDS, NAMES, plain

MAX_WORK = 10_000_000
"""Comparisons, calls and rounds of loops for one trajectory."""
MAX_BITS = 4096
"""Of whole numbers in arithmetic."""
MAX_TEXT = 1_000_000
"""Characters of a text that ``+`` gives."""


class ExpressionError(RolloutTraceError, ValueError):
    """An expression that is wrong, or cannot be evaluated."""


class Scope:
    """Context in which an expression is evaluated."""

    __slots__ = ("_values", "_work", "trajectory", "variables")

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.variables: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._work = 0

    def name(self, name: str) -> Any:
        """The value of a name, computed once."""
        if name not in self._values:
            self._values[name] = plain(NAMES[name].get(self.trajectory))
        return self._values[name]

    def count(self) -> None:
        """Counts a piece of work. Raises ExpressionError where it is too much."""
        self._work += 1
        if self._work > MAX_WORK:
            raise ExpressionError(f"it takes more than {MAX_WORK} operations.")


def field(value: Any, name: str) -> Any:
    """A field of an object, or a key of a mapping; None where it is missing."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return plain(value.get(name))
    known = FIELDS.get(type(value))
    if known is None:
        raise ExpressionError(f"{_shown(value)} has no field {name!r}.")
    if name not in known:
        raise ExpressionError(f"a {type(value).__name__} has no field {name!r}; it has {', '.join(sorted(known))}.")
    return plain(getattr(value, name))


def item(value: Any, key: Any) -> Any:
    """A value of a mapping, or an item of a list or text; None where it is missing."""
    if value is None or key is None:
        return None
    if isinstance(value, Mapping):
        return plain(value.get(key)) if isinstance(key, (str, int, float)) else None
    if type(value) in FIELDS and isinstance(key, str):
        return field(value, key)
    if not isinstance(value, Sequence):
        raise ExpressionError(f"{_shown(value)} has no items.")
    if isinstance(key, bool) or not isinstance(key, int):
        raise ExpressionError(f"the items of {_shown(value)} have numbers, not {_shown(key)}.")
    return plain(value[key]) if -len(value) <= key < len(value) else None


def items(value: Any) -> Sequence[Any]:
    """Returns what a loop iterates over: the items of a list, the keys of a mapping; nothing for None."""
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return list(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return value
    raise ExpressionError(f"expected a list, got {_shown(value)}.")


def _shown(value: Any) -> str:
    kinds = {bool: "", str: "the text ", int: "the number ", float: "the number ", list: "the list "}
    if type(value) in FIELDS:
        return f"a {type(value).__name__}"
    return f"{kinds.get(type(value), '')}{brief(value)}"


# Comparisons

Test = Callable[[Any, Any], bool]


def compare(op: ast.cmpop, *, asks_none: bool) -> Test:
    """The test of a comparison. ``asks_none``: one of its sides is written as None, which it then asks for."""
    if isinstance(op, (ast.Is, ast.IsNot)) or (asks_none and isinstance(op, (ast.Eq, ast.NotEq))):
        is_same = isinstance(op, (ast.Is, ast.Eq))
        return lambda a, b: (a is b or (a is not None and b is not None and bool(a == b))) is is_same
    do, is_order = _TESTS[type(op)], isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))

    def test(left: Any, right: Any) -> bool:
        if left is None or right is None:
            return False
        are_alike = (_is_number(left) and _is_number(right)) or (isinstance(left, str) and isinstance(right, str))
        if is_order and not are_alike:
            raise ExpressionError(f"{_shown(left)} cannot be compared with {_shown(right)}.")
        return bool(do(left, right))

    return test


def contains(part: Any, whole: Any) -> bool:
    """``part in whole``, neither of them None: part of a text, an item of a list, a key of a mapping."""
    if isinstance(whole, str):
        if not isinstance(part, str):
            raise ExpressionError(f"expected a text before `in`, got {_shown(part)}.")
        return part in whole
    if isinstance(whole, Mapping):
        return isinstance(part, (str, int, float)) and part in whole
    return part in items(whole)


_TESTS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.In: contains, ast.NotIn: lambda a, b: not contains(a, b)},
}


# Arithmetic


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ExpressionError("a number is too large.")
    return value


def _power(left: Any, right: Any) -> float:
    found: Any = float(left) ** float(right)
    if isinstance(found, complex):
        raise ExpressionError(f"{left} ** {right} is not a real number.")
    return float(found)


_ARITHMETIC: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
    ast.Pow: ("**", _power),
}


def binary(op: ast.operator) -> Callable[[Any, Any], Any] | None:
    """The function of an arithmetic operator; None for one that is not allowed."""
    if type(op) not in _ARITHMETIC:
        return None
    sign, do = _ARITHMETIC[type(op)]

    def value(left: Any, right: Any) -> Any:
        if left is None or right is None:
            return None
        if sign == "+" and isinstance(left, str) and isinstance(right, str):
            if len(left) + len(right) > MAX_TEXT:
                raise ExpressionError("a text is too long.")
            return left + right
        if not (_is_number(left) and _is_number(right)):
            raise ExpressionError(f"{sign} needs numbers, not {_shown(left)} and {_shown(right)}.")
        try:
            return _bounded(do(_bounded(left), _bounded(right)))
        except ZeroDivisionError:
            raise ExpressionError(f"{_shown(left)} is divided by zero.") from None
        except OverflowError:
            raise ExpressionError("a number is too large.") from None

    return value


def _of(name: str, kind: type | tuple[type, ...], do: Callable[..., Any], default: Any = None) -> Callable[..., Any]:
    """A function of numbers, or of texts; ``default`` where one of these is None."""

    def call(*values: Any) -> Any:
        wrong = next((one for one in values if one is not None and not isinstance(one, kind)), None)
        if wrong is not None:
            raise ExpressionError(f"{name} needs a {'text' if kind is str else 'number'}, not {_shown(wrong)}.")
        return default if None in values else do(*values)

    return call


negative = _of("-", (int, float), operator.neg)


# Functions


class Function(NamedTuple):
    """A function that expressions can call."""

    call: Callable[..., Any]
    usage: str
    least: int = 1
    most: int = 1


def _len(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, (str, Mapping, Sequence)):
        return len(value)
    raise ExpressionError(f"{_shown(value)} has no length.")


def _numbers(*values: Any) -> list[Any]:
    given = items(values[0]) if len(values) == 1 and not _is_number(values[0]) else values
    found = [plain(one) for one in given if one is not None]
    if not all(map(_is_number, found)) and not all(isinstance(one, str) for one in found):
        raise ExpressionError(f"expected numbers, or texts, got {_shown(found)}.")
    return found


def _sum(values: Any) -> Any:
    found = _numbers(values)
    if any(isinstance(one, str) for one in found):
        raise ExpressionError(f"expected numbers, got {_shown(found)}.")
    return _bounded(sum(map(_bounded, found)))


def check_pattern(pattern: Any) -> re.Pattern[str]:
    """The regular expression of a text. Raises ExpressionError: it is none."""
    if not isinstance(pattern, str):
        raise ExpressionError(f"matches needs a regular expression as text, not {_shown(pattern)}.")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ExpressionError(f"{pattern!r} is not a regular expression: {error}.") from None


FUNCTIONS: dict[str, Function] = {
    "len": Function(_len, "len(x)"),
    "any": Function(lambda values: any(items(values)), "any(test for x in list)"),
    "all": Function(lambda values: all(items(values)), "all(test for x in list)"),
    "min": Function(lambda *values: min(_numbers(*values), default=None), "min(list) or min(a, b)", most=100),
    "max": Function(lambda *values: max(_numbers(*values), default=None), "max(list) or max(a, b)", most=100),
    "sum": Function(_sum, "sum(number for x in list)"),
    "abs": Function(_of("abs", (int, float), abs), "abs(number)"),
    "lower": Function(_of("lower", str, str.lower), "lower(text)"),
    "startswith": Function(_of("startswith", str, str.startswith, False), "startswith(text, begin)", 2, 2),
    "endswith": Function(_of("endswith", str, str.endswith, False), "endswith(text, end)", 2, 2),
    "matches": Function(
        _of("matches", str, lambda text, pattern: check_pattern(pattern).search(text) is not None, False),
        'matches(text, "regular expression")',
        2,
        2,
    ),
}
"""``min`` and ``max`` of nothing are None; what is None is left out of ``min``, ``max`` and ``sum``."""
