"""``rollout-trace check PATH...``: what matters for training; with ``--format`` what is wrong with the files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from rollout_trace._wrong_use import did_you_mean
from rollout_trace.cli.common import Test, json_option, on_words, say, show, show_problems, where_option
from rollout_trace.cli.reading import STDIN, STDIN_NAME, Progress, Trajectories, open_stdin, paths_of
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from typing import BinaryIO

    from rollout_trace.file.validate import Problem, Report
    from rollout_trace.view.findings import Findings, Place

_GRADES = ("fatal", "warning", "info")
_OF_FINDINGS = ("profile", "fail_on", "codes", "vocab_size", "every", "where")
_OF_FORMAT = ("max_problems", "ignore")
_NAMES = {"codes": "code", "every": "all"}
"""Options whose parameter has another name."""


def _codes(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> frozenset[str] | None:
    from rollout_trace.train.check_codes import CODES

    for value in values:
        if value not in CODES:
            meant = did_you_mean(value, CODES, "docs/checks.md lists them.")
            raise click.BadParameter(f"there is no code {value!r}. {meant}")
    return frozenset(values) or None


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--profile", type=click.Choice(("train", "observe")), help="observe leaves out what only training "
              "needs. Default: train if a step has token ids or you give --code or --fail-on.")  # fmt: skip
@click.option("--fail-on", type=click.Choice((*_GRADES, "never")), default="fatal", show_default=True,
              help="Exit with code 1 from this grade on.")  # fmt: skip
@click.option(
    "--code",
    "codes",
    multiple=True,
    callback=_codes,
    metavar="CODE",
    help="Report only findings with this code; can be repeated.",
)
@click.option("--vocab-size", type=click.IntRange(min=1), metavar="N", help="Report token ids of N and above.")
@click.option("--all", "every", is_flag=True, help="Print every finding as it is found; with --json one line each.")
@where_option
@click.option("--format", "is_format", is_flag=True, help="Check the file format instead, line by line.")
@click.option("--max-problems", type=click.IntRange(min=0), default=100, metavar="N", show_default=True,
              help="With --format: print at most N problems.")  # fmt: skip
@click.option("--ignore", multiple=True, metavar="CODE", help="With --format: leave out a code; can be repeated.")
@json_option
@click.pass_context
def check(ctx: click.Context, /, paths: tuple[str, ...], is_format: bool, as_json: bool, **options: Any) -> int:
    """Check trajectories: list the findings of trajectory.check() by code, with places.

    Files without any token ids were recorded to look at, not to train on: what matters to a trainer alone is left out
    of them, such as ids_missing. --profile train lists it.

    Also found is a rollout that is there twice, which one trajectory does not show. Findings have a grade: fatal (a
    step, or the trajectory, cannot be trained on), warning, or info. docs/checks.md has all codes.

    With --format the files themselves are checked: schema, tokens, references, media, notes. Each problem is printed
    with its file, line, place in the record, what was expected and what was found, and the code of the rule.

    PATH is a file, a pattern, a folder, an address, or - for stdin.

    Exit code 1: there is a finding of the grade --fail-on, or of a worse one, or lines could not be read; with
    --format, problems were found. Where no ids are recorded, what training lacks does not count: before training give
    --profile train, or --fail-on GRADE, which stands for it.
    """
    for name in _OF_FINDINGS if is_format else _OF_FORMAT:
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            option = f"--{_NAMES.get(name, name).replace('_', '-')}"
            raise click.UsageError(f"{option} works only {'without' if is_format else 'with'} --format.", ctx)
    if is_format:
        return _check_format(paths, options["max_problems"], options["ignore"], as_json=as_json)
    if ctx.get_parameter_source("fail_on") is not click.core.ParameterSource.DEFAULT and options["fail_on"] != "never":
        # Whoever has a script fail expects what training lacks among it.
        options["profile"] = options["profile"] or "train"
    return _check(paths, **{name: options[name] for name in _OF_FINDINGS}, as_json=as_json)


def _check(
    paths: tuple[str, ...],
    *,
    profile: str | None,
    fail_on: Any,
    codes: frozenset[str] | None,
    vocab_size: int | None,
    every: bool,
    where: Test | None,
    as_json: bool,
) -> int:
    from rollout_trace.train.check_codes import FOR_TRAINING
    from rollout_trace.view.findings import Findings, Repeated, findings_of, holds_ids

    every_one, observed, repeated = Findings(), Findings(), Repeated()
    held: list[Place] = []
    is_for_training = profile == "train" or (profile is None and codes is not None)
    is_decided = is_for_training or profile is not None
    left_out = False
    files = Trajectories(paths, where, progress=not every)
    for one in files:
        places = list(findings_of(one.path, one.number, one.trajectory, codes=codes, vocab_size=vocab_size))
        if codes is None or "repeated_rollout" in codes:
            places += repeated.of(one.path, one.number, one.trajectory)
        if not is_decided:
            is_decided = is_for_training = holds_ids(one.trajectory)
        seen = [place for place in places if place.code not in FOR_TRAINING]
        left_out = left_out or len(seen) < len(places)
        every_one.add(places)
        observed.add(seen)
        if every and is_for_training:
            _print_each([*held, *places], as_json=as_json)
            held.clear()
        elif every:
            _print_each(seen, as_json=as_json)
            # Whether they are to be printed too is known with the first trajectory that has ids.
            held += () if is_decided else [place for place in places if place.code in FOR_TRAINING]
    found = every_one if is_for_training else observed
    if not every:
        _print_sums(found, files, "train" if is_for_training else "observe", as_json=as_json)
    if profile is None and found is observed and left_out and not as_json:
        click.echo("no token ids are recorded: this used --profile observe. --profile train lists what training lacks")
    show_problems(files.problems, as_json=as_json and not every)
    return int((fail_on != "never" and found.has(fail_on)) or bool(files.problems))


def _print_each(places: Iterable[Place], *, as_json: bool) -> None:
    from rollout_trace.view.values import ascii_json

    if as_json:
        say(map(ascii_json, places))
    else:
        say(on_words(printable(str(place)) for place in places))


def _print_sums(found: Findings, files: Trajectories, profile: str, *, as_json: bool) -> None:
    if not as_json:
        say(on_words(map(printable, found.lines())))
        return
    from rollout_trace.view.values import ascii_json

    say([ascii_json({"profile": profile, **found.as_dict(), "unreadable": [str(error) for error in files.problems]})])


def _check_format(paths: tuple[str, ...], max_problems: int, ignore: tuple[str, ...], *, as_json: bool) -> int:
    import msgspec

    from rollout_trace.file.validate import RULES, validate

    for code in ignore:
        if code not in RULES:
            raise click.UsageError(f"--ignore {code}: there is no such code. Codes: {', '.join(sorted(RULES))}.")
    shown: list[Problem] = []
    count = 0

    def found(problem: Problem) -> None:
        nonlocal count
        count += 1
        if count > max_problems:
            return
        if as_json:
            shown.append(problem)
        else:
            click.echo(printable(str(problem)))

    files = [STDIN_NAME if path == STDIN else path for path in paths_of(paths)]
    with Progress(files) as progress:

        def opened(path: str) -> BinaryIO:
            return open_stdin() if path == STDIN_NAME else progress.open(path)

        report = validate(files, found, ignore=ignore, open_file=opened, alone=[STDIN_NAME])
    result = {**msgspec.to_builtins(report), "found": msgspec.to_builtins(shown)} if as_json else {}
    show(_summary(report, max_problems), result, as_json=as_json)
    return int(report.problems > 0)


def _summary(report: Report, limit: int) -> list[str]:
    from rollout_trace.file.validate import RULES
    from rollout_trace.view.numbers import of, trajectories

    what = [of(report.files, "file"), of(report.lines, "line"), trajectories(report.trajectories)]
    checked = ", ".join([*what, of(report.notes, "note")] if report.notes else what)
    if not report.problems:
        return [f"no problems in {checked}"]
    more = report.problems - limit
    lines = [f"and {more} more; --max-problems N prints N of them"] if more > 0 else []
    lines.append(f"{of(report.problems, 'problem')} in {checked}:")
    width, digits = max(map(len, report.codes)), len(str(max(report.codes.values())))
    for code, count in report.codes.most_common():
        lines.append(f"  {count:>{digits}}  {code:<{width}}  {RULES[code].advice}")
    return lines
