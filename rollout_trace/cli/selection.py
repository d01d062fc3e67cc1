"""Which trajectories a command takes: the option ``--where``, an expression of ``filter``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

F = TypeVar("F", bound="Callable[..., Any]")


def where_option(command: F) -> F:
    """The option ``--where EXPR`` of a command, its parameter ``where``: a text, or None. See ``compile_where``."""
    return click.option(
        "--where", metavar="EXPR", help="Only trajectories for which EXPR is true, such as: reward > 0.5"
    )(command)


def compile_where(where: str | None) -> Callable[[Trajectory], bool] | None:
    """The test that an expression makes; None for None. See ``rollout_trace.view.expression``.

    The test raises ``ExpressionError`` where it cannot be evaluated, which the command reports.

    Raises:
        click.UsageError: it is no expression, or has a name that there is not.
    """
    if where is None:
        return None
    from rollout_trace.view.expression import Expression
    from rollout_trace.view.expression_values import ExpressionError

    try:
        return Expression(where)
    except ExpressionError as error:
        raise click.UsageError(str(error)) from None
