"""``rollout-trace run [OPTIONS] [--] PROGRAM [ARGS]...``: its help. It is run by ``launch.py``, without click."""

from __future__ import annotations

import click

from rollout_trace.cli.launch import DEFAULT_OUTPUT


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-o", "--output", metavar="FILE", help=f"Append the trajectories to FILE. Default: {DEFAULT_OUTPUT}.")
@click.option("--engine", metavar="E", help="Ask the servers for token ids and logprobs: vllm, sglang, ... or auto.")
@click.option("--exact-turns", is_flag=True, help="Send earlier turns as the ids that were sampled (vLLM).")
@click.option("--name", metavar="N", help="Name of the program's trajectory. Default: that of the program.")
@click.option("--task", metavar="ID", help="Id of its task.")
@click.option("--reward-from", metavar="JSON-FILE", help="The reward, in a file that the program writes.")
@click.option("--cli", metavar="NAME", help="The known program that PROGRAM is, under another name: codex, ...")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
@click.pass_context
def run(ctx: click.Context, /, program: tuple[str, ...], **options: object) -> int:
    """Run a program, unchanged, and record what it sends to models and what they answer.

    PROGRAM is a Python script, -m MODULE, -c TEXT, or a command: a console script such as pytest, or any other, in
    whatever language. Python programs that it starts are recorded too. The calls of a process that it makes outside of
    every rt.trajectory are one trajectory. At the end a summary is printed to stderr.

    Exit code: that of the program; 2 where it could not be started.
    """
    del program, options
    raise click.UsageError("which program? For example: rollout-trace run -o rollouts.jsonl agent.py", ctx)
