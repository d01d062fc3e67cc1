"""Finds the command, runs it, and turns its exceptions into a message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

import click

from rollout_trace._version import __version__
from rollout_trace.cli.commands import COMMANDS
from rollout_trace.errors import FormatError, RolloutTraceError
from rollout_trace.guard import describe, printable

FOUND, FAILED, INTERRUPTED = 1, 2, 130


class _Commands(click.Group):
    """Imports the module of a command when it is asked for: `--help` alone imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(f"rollout_trace.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(name.lower(), COMMANDS, 1)
            meant = f"Did you mean {near[0]}?" if near else "--help lists those that there are."
            ctx.fail(f"No such command {name!r}. {meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 something was found, 2 it could not be done.",
)
@click.version_option(__version__, prog_name="rollout-trace", message="%(prog)s %(version)s")
def _app() -> None:
    """Record rollouts, look at them, check and convert them."""


def run(args: Sequence[str] | None) -> int:
    """Runs the command and returns its exit code."""
    try:
        if "_ROLLOUT_TRACE_COMPLETE" in os.environ:
            from rollout_trace.cli.completion import register

            register()
        code = _app.main(None if args is None else list(args), prog_name="rollout-trace", standalone_mode=False)
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


def _fail(message: str, code: int) -> int:
    click.echo(message, err=True)
    return code
