"""Finds the command, runs it, and turns its exceptions into a message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

import click

from rollout_trace._version import __version__
from rollout_trace._wrong_use import did_you_mean
from rollout_trace.errors import FormatError, RolloutTraceError
from rollout_trace.guard import describe, printable

COMMANDS = {
    "annotate": "Add a reward or a label to a recorded trajectory.",
    "check": "Find problems for training, or broken lines in files.",
    "collect": "Run an agent over tasks and record each run.",
    "completion": "Print the completion script of a shell.",
    "convert": "Write trajectories in the format of a trainer or a tool.",
    "diff": "Show the first difference of two trajectories or files.",
    "filter": "Keep the trajectories for which an expression is true.",
    "fork": "Run a program again from a step of a recorded run.",
    "import": "Import recordings of other tools.",
    "ls": "List trajectories, or follow a growing file.",
    "merge": "Join files into one: apply notes, drop duplicates.",
    "mismatch": "Compare a trainer's logprobs with the engine's.",
    "query": "Removed: says how to query files with DuckDB.",
    "recover": "Recover trajectories of killed processes.",
    "run": "Run a program and record its calls.",
    "serve": "Answer agents from a script: a server without a model.",
    "show": "Show a trajectory as a conversation.",
    "split": "Split a file, keeping groups together.",
    "stats": "Sum up: rewards, tokens, cost, times, findings.",
    "view": "Open trajectories in the browser.",
}
"""What ``--help`` lists. ``NAME`` is a ``click.Command`` in ``NAME.py`` or ``about.py`` that returns its exit code; a
name that Python reserves has an underscore behind it there: ``import_``."""
_ABOUT = ("completion", "run", "--schema", "--versions")
"""Those in ``about.py``. The last two are options that have options of their own."""
OLD = {
    "head": ("ls", "-n", "10"),
    "schema": ("--schema",),
    "tail": ("ls", "--last"),
    "validate": ("check", "--format"),
    "versions": ("--versions",),
}

FOUND, FAILED, INTERRUPTED = 1, 2, 130


class _Commands(click.Group):
    """Imports the module of a command when it is asked for: `--help` alone imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in (*COMMANDS, *_ABOUT):
            return None
        name = cmd_name.lstrip("-") + "_" * iskeyword(cmd_name)
        module = import_module(f"rollout_trace.cli.{'about' if cmd_name in _ABOUT else name}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in (*COMMANDS, *_ABOUT) and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}. {did_you_mean(name, (*COMMANDS, *OLD), '--help lists them.')}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 something was found, 2 it could not be done.",
)
@click.option(
    "--schema",
    is_flag=True,
    expose_value=False,
    help="Print the JSON Schema of the file format.",
)
@click.option(
    "--versions",
    is_flag=True,
    expose_value=False,
    help="Print the versions that a bug report needs.",
)
@click.version_option(__version__, prog_name="rollout-trace", message="%(prog)s %(version)s")
def _app() -> None:
    """Record rollouts, look at them, check and convert them."""


def run(args: Sequence[str] | None) -> int:
    """Runs the command and returns its exit code."""
    try:
        if "_ROLLOUT_TRACE_COMPLETE" in os.environ:
            from rollout_trace.cli.about import register

            register()
        given = _renamed(sys.argv[1:] if args is None else list(args))
        code = _app.main(given, prog_name="rollout-trace", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return FAILED
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        usage = "" if context is None else f"{context.get_usage()}\n"
        # click indents with tabs what an argument can be.
        message = "\n".join(printable(line.expandtabs(2)) for line in error.format_message().splitlines())
        return _fail(f"{usage}Error: {message}", FAILED)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Who read the output has closed it (`| head`). What is still buffered must not fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FOUND
    except FormatError as error:
        return _fail(f"Error: {printable(str(error))}", FOUND)
    except (OSError, RolloutTraceError, ImportError) as error:
        text = describe(error) if isinstance(error, OSError) and error.errno is not None else str(error)
        return _fail(f"Error: {printable(text)}", FAILED)


def _renamed(args: list[str]) -> list[str]:
    """The arguments, with what an old command is now."""
    if not args or args[0] not in OLD:
        # The group would take these for options without options of their own.
        return ["--", *args] if args and args[0] in _ABOUT[2:] else args
    old, new, rest = args[0], list(OLD[args[0]]), args[1:]
    if new[0] == "ls":
        # Both printed lines to a pipe, and with --json.
        end = rest.index("--") if "--" in rest else len(rest)
        rest = ["--raw" if one == "--json" else one for one in rest[:end]] + rest[end:]
        new += [] if sys.stdout.isatty() else ["--raw"]
    click.echo(f"rollout-trace {old} is an old name of: rollout-trace {' '.join(new)}", err=True)
    return _renamed([*new, *rest])


def _fail(message: str, code: int) -> int:
    click.echo(message, err=True)
    return code
