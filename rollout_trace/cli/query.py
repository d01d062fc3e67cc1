"""``rollout-trace query``, which asked files in SQL: it says how DuckDB does."""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar='"SELECT ..." PATH...')
def query(arguments: tuple[str, ...]) -> int:
    """This command was removed: use DuckDB to query files in SQL.

    \b
    duckdb -c "SELECT avg(reward) FROM read_json('rollouts.jsonl', sample_size = -1)"

    To choose trajectories by an expression: rollout-trace filter.
    """
    raise click.ClickException(
        'rollout-trace query was removed. DuckDB reads the file itself: duckdb -c "SELECT avg(reward) FROM '
        "read_json('rollouts.jsonl', sample_size = -1)\". To choose trajectories: rollout-trace filter 'reward > 0.5' "
        "rollouts.jsonl. More in docs/filter.md."
    )
