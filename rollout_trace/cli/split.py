"""``rollout-trace split PATH... -o FOLDER (--by FIELD | -n PARTS | --size SIZE | --fractions 0.9,0.1)``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollout_trace.cli.common import SUFFIXES, Test, json_option, show, show_problems, where_option
from rollout_trace.cli.reading import Trajectories, stdin_as_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.file.split import Entry, Part

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _SIZE.fullmatch(str(value).strip())
        size = 0 if found is None else int(float(found[1]) * 1000 ** _POWERS[found[2].lower()])
        if size < 1:
            self.fail(f"{value!r} is not a size; give one such as 500KB, 100MB or 2GB.", param, ctx)
        return size


class _Fractions(click.ParamType[list[tuple[str | None, float]]]):
    name = "fractions"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[tuple[str | None, float]]:
        given = [one.strip().rpartition("=") for one in str(value).split(",")]
        try:
            found = [(name.strip() or None, float(share)) for name, _, share in given]
        except ValueError:
            self.fail(f"{value!r} are not fractions; give some such as 0.9,0.1 or train=0.9,test=0.1.", param, ctx)
        if not all(share > 0 for _, share in found) or not math.isclose(sum(share for _, share in found), 1):
            self.fail(f"{value!r}: expected fractions above 0 whose sum is 1.", param, ctx)
        names = [name.lower() for name, _ in found if name is not None]
        if len(set(names)) < len(names) or not all(re.fullmatch(r"[a-z0-9_][a-z0-9_-]*", name) for name in names):
            self.fail(f"{value!r}: each name can be given once, and has letters, digits, - and _ only.", param, ctx)
        return found


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", required=True, metavar="FOLDER", help="Folder to write the files to.")
@click.option("--overwrite", is_flag=True, help="Replace the files of an earlier split in FOLDER.")
@click.option("--by", type=click.Choice(["group", "task", "name", "status"]), help="Write one file per value.")
@click.option("-n", "count", type=click.IntRange(1), metavar="PARTS", help="Write N files of about the same size.")
@click.option("--size", type=_Size(), metavar="SIZE", help="Write files of at most SIZE, such as 100MB, uncompressed.")
@click.option("--fractions", type=_Fractions(), metavar="F,F", help="Split at random: 0.9,0.1 or train=0.9,test=0.1.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for --fractions.")
@where_option
@json_option
def split(
    paths: tuple[str, ...], output: str, overwrite: bool, where: Test | None, as_json: bool, seed: int, **how: Any
) -> int:
    """Write the trajectories of files to several files in FOLDER.

    The trajectories of one group, and those of one episode (an agent and its sub-agents), go to the same file. With
    --by task, name or status an episode goes where its outermost trajectory goes, and a group whose runs differ in it
    is in several files, which is reported.

    Lines are copied byte for byte, in their order, with their media and notes. The files are compressed as the first
    one that is read. PATH is a file, a pattern, a folder, an address, or - for stdin.

    Exit code 1: there are lines that could not be read, which are in no file, or there is no trajectory.
    """
    given = {name: value for name, value in how.items() if value is not None}
    if len(given) != 1:
        raise click.UsageError("give exactly one of --by, -n, --size and --fractions.")
    with stdin_as_file(paths) as (found_files, named):
        # Once each: a file that is named twice is not split twice.
        files = list(dict.fromkeys(found_files))
        mode_files = [path for path in files if named(path) == path]
        entries, found, read = _entries(files, given.get("by"), where)
        problems = [named(str(error)) for error in found]
        parts = [part for part in _parts(entries, given, seed) if part.entries]
        written = _write(Path(output), files, mode_files, parts, overwrite)
    return _report(written, parts, read, problems, given, output, as_json=as_json)


def _entries(files: list[str], by: str | None, where: Test | None) -> tuple[list[Entry], list[Exception], int]:
    from rollout_trace.file.split import Entry

    indices = {path: at for at, path in enumerate(files)}
    entries = []
    found = Trajectories(files, where, progress=True)
    for one in found:
        run = one.trajectory
        place = indices[one.path], one.number, len(one.data)
        entries.append(Entry(*place, run.id, run.episode_id, run.group_id, _value(run, by)))
    return entries, list(found.problems), found.read


def _value(run: Trajectory, by: str | None) -> str | None:
    if by == "task":
        return None if run.task is None else run.task.id
    value: str | None = None if by is None else run.group_id if by == "group" else getattr(run, by)
    return value


def _parts(entries: Sequence[Entry], given: dict[str, Any], seed: int) -> list[Part]:
    from rollout_trace.file import split

    name, value = next(iter(given.items()))
    if name == "by":
        return split.by_value(entries, value)
    if name == "count":
        return split.by_number(entries, value)
    return split.by_size(entries, value) if name == "size" else split.by_fractions(entries, value, seed)


def _write(folder: Path, files: list[str], mode_files: list[str], parts: list[Part], overwrite: bool) -> list[str]:
    from rollout_trace.file.merge import mode_of
    from rollout_trace.file.split import check_folder, write_parts

    suffix = next((suffix for suffix in SUFFIXES if files[0].endswith(suffix)), ".jsonl")
    try:
        check_folder(folder, [f"{part.name}{suffix}" for part in parts], overwrite=overwrite)
    except FileExistsError as error:
        raise click.UsageError(str(error).replace("overwrite=True", "--overwrite")) from error
    return write_parts(folder, suffix, files, parts, mode_of(mode_files)) if parts else []


def _report(
    written: Sequence[str],
    parts: Sequence[Part],
    read: int,
    problems: Sequence[str],
    given: dict[str, Any],
    output: str,
    *,
    as_json: bool,
) -> int:
    from rollout_trace.file.split import torn

    counts = [len(part.entries) for part in parts]
    found = [f"{sum(counts)} of {read} trajectories in {len(parts)} files in {output}"]
    found += [f"{path}: {count}" for path, count in zip(written, counts, strict=True)]
    wanted = given.get("count", len(given.get("fractions", ())))
    if len(parts) < wanted:
        found.append(f"{wanted - len(parts)} files were not written, because there were too few groups to fill them")
    if in_several := torn(parts):
        found.append(f"these groups are in several files: {in_several}")
    result = {
        "output": output,
        "read": read,
        "files": [{"path": path, "trajectories": count} for path, count in zip(written, counts, strict=True)],
        "torn_groups": in_several,
        "unreadable": problems,
    }
    show(found, result, as_json=as_json)
    show_problems(problems, as_json=as_json)
    return int(bool(problems or not parts))
