"""``rollout-trace show PATH... [ID]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rollout_trace.cli.choice import Choice, choices_of, split_arguments
from rollout_trace.cli.common import (
    Test,
    json_option,
    load_tokenizer_of,
    show_problems,
    tokenizer_option,
    where_option,
)
from rollout_trace.view.styles import COLOR_BY, ShowOptions
from rollout_trace.view.terminal import NoSuchStep

if TYPE_CHECKING:
    from rollout_trace.view.terminal import Printer


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, required=True, metavar="PATH... [ID]")
@click.option("--tokens", is_flag=True, help="Show completions as coloured tokens.")
@click.option(
    "--color-by",
    type=click.Choice(COLOR_BY),
    default="logprob",
    show_default=True,
    help="Colour tokens by this value.",
)
@click.option("--step", type=int, metavar="N", help="Show everything of step N; -1 is the last.")
@click.option("--raw", is_flag=True, help="Show requests and answers byte for byte, if they were kept.")
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
@click.option("--alone", is_flag=True, help="Leave out the trajectories of sub-agents.")
@click.option(
    "-n", "number", type=click.IntRange(min=1), metavar="N", help="Show the first N trajectories.  [default: 1]"
)
@where_option
@tokenizer_option
@click.option(
    "--theme", type=click.Choice(["dark", "light"]), help="Background of the terminal, if it cannot be detected."
)
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.option(
    "--width", type=click.IntRange(min=20), metavar="N", help="Width in columns.  [default: the terminal's, else 80]"
)
@json_option
def show(
    arguments: tuple[str, ...],
    tokens: bool,
    color_by: Any,
    step: int | None,
    raw: bool,
    full: bool,
    alone: bool,
    number: int | None,
    where: Test | None,
    tokenizer: str | None,
    theme: Any,
    color: str,
    width: int | None,
    as_json: bool,
) -> int:
    """Show a trajectory as a conversation.

    Without ID the first trajectory of PATH is shown. ID is the id of a trajectory or its beginning, the id of a
    task, or a position: 3 is the third one, -1 the last. PATH is a file, a pattern, a folder, an address, or -
    for stdin.

    With --json: an object with "outline" and "steps"; the steps have their tokens with --tokens or --step.

    \b
    rollout-trace show rollouts.jsonl
    rollout-trace show rollouts.jsonl gsm8k/17 --tokens
    rollout-trace show rollouts.jsonl -1 --step 4
    rollout-trace show runs.jsonl --where 'reward < 1' --color always | less -R

    Exit code 1: lines that could not be read.
    """
    _refuse_unknown(arguments)
    paths, wanted = split_arguments(arguments)
    if wanted is not None and number is not None:
        raise click.UsageError("-n N and an ID cannot be used together.")
    options = ShowOptions(tokens=tokens, color_by=color_by, full=full, decode=load_tokenizer_of(tokenizer))
    problems: list[object] = []
    chosen = choices_of(paths, wanted, number=number or 1, where=where, problems=problems)
    try:
        if as_json:
            _print_json(chosen, options, step, is_list=number is not None)
        else:
            printer = _printer(options, theme, width, color)
            for choice in chosen:
                _print(printer, choice, step, raw=raw, alone=alone)
    except NoSuchStep as error:
        raise click.UsageError(str(error)) from None
    show_problems(problems, as_json=False)
    return int(bool(problems))


def _refuse_unknown(arguments: Iterable[str]) -> None:
    """Options that there are not: they come as arguments, so that ``-1`` may be one."""
    for one in arguments:
        if one.startswith("-") and one != "-" and not one[1:].isdigit():
            raise click.NoSuchOption(one.partition("=")[0], ctx=click.get_current_context())


def _printer(options: ShowOptions, theme: Any, width: int | None, color: str) -> Printer:
    from rollout_trace.view.styles import console
    from rollout_trace.view.terminal import Printer

    colors = {"auto": None, "always": True, "never": False}[color]
    return Printer(console(theme=theme, width=width, color=colors), options)


def _print(printer: Printer, choice: Choice, step: int | None, *, raw: bool, alone: bool) -> None:
    if not raw and step is None:
        # Before the trajectory is decoded, which takes a while where it is long.
        printer.begin(choice.name, choice.id, choice.place)
    trajectory = choice.trajectory()
    if raw:
        printer.show_raw(trajectory, step, choice.records())
    elif step is not None:
        printer.show_step(trajectory, step)
    else:
        printer.show(trajectory, _nothing if alone else partial(choice.family, trajectory))


def _nothing() -> Sequence[Any]:
    return ()


def _print_json(choices: Iterable[Choice], options: ShowOptions, step: int | None, *, is_list: bool) -> None:
    """Prints trajectories as JSON, step by step: a whole one may be large."""
    write: Callable[[str], None] = lambda text: click.echo(text, nl=False)  # noqa: E731
    before = '{"trajectories": [' if is_list else ""
    for choice in choices:
        write(before)
        _write_json(write, choice, options, step)
        before = ", "
    write("]}\n" if is_list else "\n")


def _write_json(write: Callable[[str], None], choice: Choice, options: ShowOptions, step: int | None) -> None:
    import json

    import msgspec

    from rollout_trace.view.terminal import step_at
    from rollout_trace.view.trajectory_view import TrajectoryView

    trajectory = choice.trajectory()
    view = TrajectoryView(trajectory, decode=options.decode)
    steps = range(len(trajectory.steps)) if step is None else [step_at(trajectory, step)]
    if step is None:
        write(f'{{"outline": {json.dumps(msgspec.to_builtins(view.outline))}, "steps": [')
    for at in steps:
        (one,) = view.steps(at, at + 1, tokens=options.tokens or step is not None)
        write(f"{', ' if step is None and at else ''}{json.dumps(msgspec.to_builtins(one))}")
    if step is None:
        write("]}")
