"""``rollout-trace serve [SOURCE]``: a model server without a model, which answers from a script."""

from __future__ import annotations

import click


# Its options, and --help, are those of the module, which needs no click.
@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS] [SOURCE]")
def serve(arguments: tuple[str, ...]) -> int:
    """Answer agents from a script, from recorded rollouts, or with what they said."""
    from rollout_trace.testing.serve import main

    return main(arguments, prog="rollout-trace serve")
