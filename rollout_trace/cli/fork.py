"""``rollout-trace fork FILE ID --step N -- PROGRAM``."""

from __future__ import annotations

import os
from typing import Any

import click

from rollout_trace.cli import launch
from rollout_trace.cli.choice import choices_of
from rollout_trace.cli.reading import STDIN


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="FILE")
@click.argument("wanted", metavar="ID")
@click.option("--step", type=int, required=True, metavar="N", help="Answer the first N model calls from the recording.")
@click.option(
    "--on-difference",
    type=click.Choice(["raise", "live"]),
    default="raise",
    show_default=True,
    help="Refuse a call that differs, or send it to the model.",
)
@click.option(
    "--tools",
    type=click.Choice(["run", "recorded"]),
    default="run",
    show_default=True,
    help="Run tools again, or let rt.recorded_tool give their results.",
)
@click.option("-o", "--output", metavar="OUT", help="Append the new trajectory to OUT.  [default: FILE, if it is one]")
@click.option("--engine", metavar="E", help="Ask the servers for token ids and logprobs: vllm, sglang, ... or auto.")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGS]...")
def fork(
    path: str, wanted: str, step: int, on_difference: Any, tools: Any, program: tuple[str, ...], **run: Any
) -> int:
    """Run a Python program again from a step of a recorded run of it.

    Its first N model calls, and those of the sub-agents that they led to, are answered from the recording; no request
    of theirs leaves this machine. All others go to the model. The program is recorded as rollout-trace run does, and
    its trajectory names the recorded one. ID is as for rollout-trace show.

    \b
    rollout-trace fork rollouts.jsonl 3f9a --step 12 -- agent.py "fix the bug"

    Exit code: that of the program; 2 where it could not be started.
    """
    from rollout_trace.testing.fork_program import fork_of, mark_of, variable

    if path == STDIN:
        raise click.UsageError(
            "FILE cannot be - (stdin), because the program reads stdin. Write the trajectory to a file first."
        )
    (chosen,) = choices_of([path], wanted, problems=[])
    if not run["output"] and not (chosen.files == [path] and os.path.isfile(path)):
        raise click.UsageError(f"the new trajectory cannot be appended to {path}, which is not one file. Give -o OUT.")
    what = chosen.files, chosen.id, mark_of(chosen.line), step, on_difference, tools
    try:
        origin = fork_of(*what).root.origin
        given = launch.Given()
        given.output, given.engine, given.quiet = run["output"] or path, run["engine"], run["quiet"]
        given.name, given.task = origin.name, None if origin.task is None else origin.task.id
        given.fork = variable(*what)
        given.program = list(program)
        launch.start(given)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
