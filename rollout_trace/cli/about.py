"""What rollout-trace says of itself: ``--versions``, ``--schema``, ``completion SHELL``, and the help of ``run``."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from rollout_trace._version import __version__
from rollout_trace.cli.common import check_new, json_option, show
from rollout_trace.cli.launch import DEFAULT_OUTPUT

VARIABLE = "_ROLLOUT_TRACE_COMPLETE"
"""Set by the scripts where they ask for completions."""
_PROGRAM = "rollout-trace"
_INSTALL = {
    "bash": 'in ~/.bashrc:  eval "$(rollout-trace completion bash)"',
    "zsh": 'in ~/.zshrc:  eval "$(rollout-trace completion zsh)"',
    "fish": "rollout-trace completion fish > ~/.config/fish/completions/rollout-trace.fish",
}
# What the library needs, what it records and what it writes with: the packages that a report of a defect turns on.
_PACKAGES = (
    *("aiohttp", "anthropic", "fsspec", "google-genai", "groq", "httpx", "httpx2", "litellm", "msgspec"),
    *("numpy", "ollama", "openai", "opentelemetry-sdk", "orjson", "pyarrow", "pytest", "ray", "requests", "sglang"),
    *("tinker", "tokenizers", "torch", "transformers", "trl", "verl", "vllm", "zstandard"),
)


@click.command("--versions")
@json_option
def versions(as_json: bool) -> int:
    """Print the versions of rollout-trace, of Python, and of what it is used with here.

    Those are the integrations with their frameworks, and the SDKs, HTTP libraries, engines and trainers
    that are installed. For a report of a defect.
    """
    from rollout_trace.integration.installed import Integration, integrations

    def line(one: Integration) -> str:
        if one.framework_version is None:
            return f"{one.distribution} {one.version} ({one.framework} is not installed)"
        tested = "" if one.is_tested else f", tested with {' to '.join(one.tested)}"
        return f"{one.distribution} {one.version} ({one.framework} {one.framework_version}{tested})"

    found = integrations()
    packages = {name: version for name in _PACKAGES if (version := _version(name)) is not None}
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    fields = ("distribution", "version", "framework", "framework_version")
    result: dict[str, Any] = {
        "rollout-trace": __version__,
        "python": python,
        "platform": platform.platform(),
        "integrations": [
            {**{name: getattr(one, name) for name in fields}, "tested": list(one.tested)} for one in found
        ],
        "packages": packages,
    }
    lines = [f"rollout-trace {__version__}", f"Python {python}", platform.platform()]
    lines += [*map(line, found), *(f"{name} {version}" for name, version in packages.items())]
    show(lines, result, as_json=as_json)
    return 0


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@click.command("--schema")
@click.option("--note", is_flag=True, help="Print the schema of a line of notes (rollouts.notes.jsonl).")
@click.option("-o", "--output", metavar="OUT", help="Write it to a file.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@json_option
def schema(note: bool, output: str | None, overwrite: bool, as_json: bool) -> int:
    """Print the JSON Schema (2020-12) of a line of a file of trajectories.

    With --json it is one line.
    """
    from rollout_trace.file import records as schemas

    found = schemas.note_schema() if note else schemas.schema()
    text = json.dumps(found) + "\n" if as_json else schemas.text(found)
    if output is None:
        click.echo(text, nl=False)
        return 0
    check_new(output, overwrite=overwrite)
    Path(output).write_text(text, encoding="utf-8")
    click.echo(f"written to {output}")
    return 0


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-o", "--output", metavar="FILE", help=f"Append the trajectories to FILE. Default: {DEFAULT_OUTPUT}.")
@click.option("--engine", metavar="E", help="Ask the servers for token ids and logprobs: vllm, sglang, ... or auto.")
@click.option("--exact-turns", is_flag=True, help="Send earlier turns as the ids that were sampled (vLLM).")
@click.option("--name", metavar="N", help="Name of the program's trajectory. Default: the program's name.")
@click.option("--task", metavar="ID", help="Id of the task.")
@click.option("--reward-from", metavar="JSON-FILE", help="Read the reward from this file, which the program writes.")
@click.option("--cli", metavar="NAME", help="Treat PROGRAM as this known program: codex, claude-code, ...")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGS]...")
@click.pass_context
def run(ctx: click.Context, /, program: tuple[str, ...], **options: object) -> int:
    """Run a program unchanged and record its model calls.

    PROGRAM is a Python script, -m MODULE, -c TEXT, or a command: a console script such as pytest, or any other, in
    whatever language. Python programs that it starts are recorded too. The calls of a process that it makes outside of
    every rt.trajectory are one trajectory. At the end a summary is printed to stderr.

    Exit code: that of the program; 2 where it could not be started.
    """
    # Its help alone: `launch.py` runs it, without click.
    del program, options
    raise click.UsageError("name the program to run. For example: rollout-trace run -o rollouts.jsonl agent.py", ctx)


class _Files(ShellComplete):
    """Completes names of files where an argument has no values of its own: most are files."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        # Without a command the words are those of commands alone.
        if found or not args or incomplete.startswith("-"):
            return found
        return [CompletionItem(incomplete, type="file")]


_CLASSES: dict[str, type[ShellComplete]] = {
    one.name: type(one.__name__, (_Files, one), {}) for one in (BashComplete, ZshComplete, FishComplete)
}


def register() -> None:
    """Makes click complete with these classes."""
    for name, one in _CLASSES.items():
        add_completion_class(one, name)


@click.command()
@click.argument("shell", type=click.Choice(list(_CLASSES)), metavar="bash|zsh|fish")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the script that completes commands, options and files in a shell.

    \b
    bash, in ~/.bashrc:  eval "$(rollout-trace completion bash)"
    zsh, in ~/.zshrc:    eval "$(rollout-trace completion zsh)"
    fish:  rollout-trace completion fish \\
             > ~/.config/fish/completions/rollout-trace.fish
    """
    register()
    made = _CLASSES[shell](ctx.find_root().command, {}, _PROGRAM, VARIABLE)
    click.echo(f"# To install it, {_INSTALL[shell]}")
    click.echo(made.source_template % made.source_vars())
    return 0
