"""``rollout-trace recover PATH [--write]``."""

from __future__ import annotations

import os

import click

from rollout_trace.cli.common import json_option, show


@click.command()
@click.argument("path")
@click.option("--write", is_flag=True, help="Append the trajectories to PATH, then delete the journals.")
@json_option
def recover(path: str, write: bool, as_json: bool) -> int:
    """Show the trajectories that killed processes left in the journal beside PATH.

    PATH is the output of a recording (a file, a folder of shards, or an address, whose journal and shards that were not
    uploaded are on this machine), or its folder PATH.journal. Journals of processes that run are left alone.

    Exit code 1: there are trajectories that are not in the file yet, or a journal was damaged or could not be read.
    """
    from rollout_trace.file.addresses import is_address, to_local

    place = to_local(path)
    if not (is_address(place) or os.path.exists(place) or os.path.isdir(f"{os.path.realpath(place)}.journal")):
        raise click.UsageError(f"there is no file {path}, and no journal beside it. Check the path.")
    # Imported on use: the other commands need no recorder.
    from rollout_trace.record.recovery import recover as recover_journals

    found = recover_journals(path, write=write)
    report = found.report
    trajectories = [{"id": one.id, "name": one.name, "status": one.status, "steps": len(one.steps)} for one in found]
    problems = [str(one) for name in ("damaged", "unread", "not_written") for one in getattr(report, name, None) or ()]
    result = {"trajectories": trajectories, "is_written": write, "problems": problems, "report": str(report)}
    lines = [f"{one['id']}  {one['status']}  steps: {one['steps']}  {one['name']}" for one in trajectories]
    show([*lines, *str(report).splitlines()], result, as_json=as_json)
    return int(bool(problems or ((trajectories or report.spooled) and not write)))
