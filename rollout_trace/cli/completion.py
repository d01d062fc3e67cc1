"""``rollout-trace completion bash|zsh|fish``, and what completes the words of a command line."""

from __future__ import annotations

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

VARIABLE = "_ROLLOUT_TRACE_COMPLETE"
"""Set by the scripts where they ask for completions."""
_PROGRAM = "rollout-trace"
_INSTALL = {
    "bash": 'in ~/.bashrc:  eval "$(rollout-trace completion bash)"',
    "zsh": 'in ~/.zshrc:  eval "$(rollout-trace completion zsh)"',
    "fish": "rollout-trace completion fish > ~/.config/fish/completions/rollout-trace.fish",
}


class _Files(ShellComplete):
    """Completes names of files where an argument has no values of its own: most are files."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        found = super().get_completions(args, incomplete)
        # Without a command the words are those of commands alone.
        if found or not args or incomplete.startswith("-"):
            return found
        return [CompletionItem(incomplete, type="file")]


class _Bash(_Files, BashComplete):
    pass


class _Zsh(_Files, ZshComplete):
    pass


class _Fish(_Files, FishComplete):
    pass


_CLASSES: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def register() -> None:
    """Makes click complete with these classes."""
    for name, one in _CLASSES.items():
        add_completion_class(one, name)


@click.command()
@click.argument("shell", type=click.Choice(list(_CLASSES)), metavar="bash|zsh|fish")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print the script that completes the words of rollout-trace in a shell: commands, options and files.

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
