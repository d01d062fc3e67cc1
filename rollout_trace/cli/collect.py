"""``rollout-trace collect MODULE:AGENT --tasks FILE --output O``: ``rt.collect`` for agents that have a name."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rollout_trace.cli.common import json_option, show
from rollout_trace.guard import describe

if TYPE_CHECKING:
    from rollout_trace.collection.session import Session

_NEEDED = {"agent": "the argument MODULE:AGENT", "tasks": "--tasks", "output": "--output"}
INTERRUPTED = 130
_SHOWN = 12
"""Tasks whose ids a dry run prints."""


def _option(name: str, metavar: str | None, text: str, also: str = "", **more: Any) -> Callable[[Any], Any]:
    """An option that is None where it is not given. Its value is checked with those of TOML."""
    return click.option(*filter(None, (also, name)), metavar=metavar, help=text, **{"default": None, **more})


@click.command()
@click.argument("agent", required=False, metavar="[MODULE:AGENT]")
@click.argument("further", nargs=-1, metavar="")
@_option("--tasks", "FILE", "The tasks: .jsonl, .json, .csv, .parquet, or MODULE:NAME.")
@_option("--output", "O", "A .jsonl file (.gz, .zst), a folder (runs/), or an address.", also="-o")
@_option("--samples", "N", "Make this many rollouts of each task. Default: 1.", type=int)
@_option("--concurrency", "N", "Run this many rollouts at the same time. Default: 8.", type=int)
@_option("--timeout", "S", "Seconds that one attempt may take.", type=float)
@_option("--retries", "N", "Repeat a failed rollout at most this many times.", type=int)
@_option("--retry-on", "KIND", "Retry only these exceptions; can be repeated.", multiple=True)
@_option("--retry-failed/--no-retry-failed", None, "Repeat the rollouts that failed in an earlier run.")
@_option("--reward", "[NAME=]MODULE:FN[*W]", "Score with this reward function; can be repeated.", multiple=True)
@_option("--reward-timeout", "S", "Seconds that each reward function may take.", type=float)
@_option("--engine", "E", "Ask the servers for token ids and logprobs: vllm, sglang, ... or auto.")
@_option("--seed", "N", "Rollout i of each task gets the seed N + i.", type=int)
@_option("--name", "N", "Name of the trajectories. Give each model or variant its own.")
@_option("--executor", "X", "Where rollouts run: local, process or ray. Default: local.")
@_option("--logs/--no-logs", None, "Write a log file for each rollout.")
@_option("--resume/--no-resume", None, "Continue if the output has rollouts already. Default: yes.")
@_option("--limit", "N", "Run only the first N tasks.", type=int)
@_option("--task-ids", "A,B", "Run only the tasks with these ids.")
@_option("--max-consecutive-failures", "N", "Stop after N failures in a row.", type=int)
@_option("--config", "FILE.toml", "Read options from the table [collect] of a TOML file.")
@_option("--set", "KEY=VALUE", "Set one value, such as recording.fsync=true.", also="overrides", multiple=True)
@click.option("--dry-run", is_flag=True, help="Check everything and print the plan, but run nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress and no summary.")
@json_option
def collect(
    config: str | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    further: tuple[str, ...],
    **options: Any,
) -> int:
    """Run an agent over tasks, and record each run in a trajectory of its own.

    MODULE:AGENT is a function, or a class with a method "rollout": package.module:name, or folder/file.py:name. The
    current folder can be imported from. What the output holds already is not made again: after an interruption, or for
    more tasks or samples, call it once more.

    Settings of --config are overridden by --set, and both by the other options. Paths in it are those of the current
    folder.

    Exit code 1: no rollout succeeded. 2: wrong use, found before any rollout was made, or the output could not be
    written. 130: interrupted, with what ran written.
    """
    if further:
        raise click.UsageError(f"{further[0]} is one argument too many: give the tasks with --tasks {further[0]}.")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    with _standard_output_kept(as_json):
        session = _prepared(config, overrides, options, quiet=quiet, dry_run=dry_run)
        lines, result, code = _plan(session) if dry_run else _made(session)
    if as_json or dry_run:
        # Otherwise it stands below the progress, on stderr.
        show(lines, result, as_json=as_json)
    return code


def _made(session: Session) -> tuple[list[str], dict[str, Any], int]:
    """Makes the rollouts; the summary as lines and as JSON, and the exit code."""
    from rollout_trace import _event_loop

    interrupted = False
    try:
        summary = _event_loop.run(session.run, "rollout_trace collect", waits=False)
    except KeyboardInterrupt:
        if session.summary is None:
            raise
        summary, interrupted = session.summary, True
    return str(summary).splitlines(), summary.as_json(), INTERRUPTED if interrupted else summary.exit_code


@contextmanager
def _standard_output_kept(wanted: bool) -> Iterator[None]:
    """Sends what anything prints in this block to stderr, agents and their children included."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _prepared(
    config: str | None, overrides: tuple[str, ...], options: Mapping[str, Any], *, quiet: bool, dry_run: bool
) -> Session:
    """The run that was asked for: all of it loaded and checked, the output read. Raises click.ClickException."""
    from rollout_trace.collection.prepare import prepare

    try:
        arguments = _arguments(config, overrides, options)
        session = prepare({**arguments, "progress": False if quiet else None})
        session.plan(write=not dry_run)
        return session
    except (TypeError, ValueError, ImportError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(describe(error) if error.errno is not None else str(error)) from error


def _arguments(config: str | None, overrides: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    from rollout_trace.collection.settings import Settings

    settings = Settings()
    if config is not None:
        settings.read(config)
    for text in overrides:
        settings.override(text)
    given = {name: _one_or_many(value) for name, value in options.items() if value != ()}
    settings.set(given, lambda name: f"--{name.replace('_', '-')}")
    arguments = settings.arguments()
    missing = [f"{place} (or {name} in --config)" for name, place in _NEEDED.items() if name not in arguments]
    if missing:
        raise click.UsageError(f"give {', and '.join(missing)}.")
    arguments["tasks"] = _tasks(arguments["tasks"])
    return arguments


def _one_or_many(value: Any) -> Any:
    """The text of an option that can be repeated, where it was given once."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 else value


def _tasks(given: str) -> Any:
    """A file of tasks, or the object that ``module:name`` names; of a function what it returns."""
    from rollout_trace.collection.objects import load_object, parse_spec

    try:
        parse_spec(given)
    except ValueError:
        return given
    if os.path.exists(given):
        return given
    found = load_object(given)
    if not inspect.isfunction(found):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise click.ClickException(
            f"--tasks {given}: {error}; give a function without arguments that returns the tasks, or a list of them."
        ) from None
    return found()


def _plan(session: Session) -> tuple[list[str], dict[str, Any], int]:
    """What a run would do, as lines and as JSON. Writes nothing."""
    from rollout_trace.collection.resume import found_in

    plan = session.plan()
    work, settings = plan.work, session.hashes.settings
    if work.output is not None:
        _check_output(work.output)
    to_make, kept = sum(1 for _ in plan.jobs()), sum(1 for _ in plan.kept())
    ids = [task.id for task in plan.tasks]
    result = {
        "run": work.run_id,
        "agent": work.agent.describe(),
        "output": work.shown_output,
        "tasks": len(ids),
        "samples": plan.samples,
        "planned": plan.size,
        "earlier": kept,
        "to_make": to_make,
        "unfinished": len(plan.earlier.unfinished),
        "in_journals": plan.earlier.recovered,
        "unreadable": plan.earlier.unreadable,
        "settings": dict(settings),
        "task_ids": ids,
    }
    given = {name: value for name, value in settings.items() if value is not None and name != "tasks"}
    shown = ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
    lines = [
        f"agent     {work.agent.module}:{work.agent.qualified_name}, as {work.name}",
        f"tasks     {len(ids)}: {shown}",
        f"output    {work.shown_output}",
        f"rollouts  {plan.size} = {len(ids)} tasks x {plan.samples}: {kept} in the output, {to_make} to make",
        f"settings  {', '.join(f'{name}={value}' for name, value in given.items())}",
        *(f"note      {text}" for text in found_in(plan)),
        "nothing was run (--dry-run)",
    ]
    return lines, result, 0


def _check_output(output: str) -> None:
    """Raises click.ClickException where an output cannot be written. Leaves no trace."""
    from rollout_trace.cli.launch import check_output
    from rollout_trace.file.addresses import is_address, is_folder_target

    if is_address(output):
        return
    try:
        # Of a folder: a file in it could be created.
        check_output(os.path.join(output, "part.jsonl") if is_folder_target(output) else output)
    except (ValueError, ImportError) as refusal:
        raise click.ClickException(str(refusal)) from None
