"""Reads a test's mark ``replay`` and pytest's options, and names tests and files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from rollout_trace.clients.loopback.programs import program_of
from rollout_trace.process.options import Options

from . import normalize
from .cassette import CassetteError, load
from .matching import MatchOptions
from .observed import CassetteOptions, Mode, ObservedTest, name_in_cassette


def as_typed(item: pytest.Item) -> str:
    """A test's name for a command: pytest's own is of the root folder, and lacks the file if that is not in it."""
    return f"{from_here(item.config, item.path)}::{name_in_file(item)}"


def from_here(config: pytest.Config, path: Path) -> str:
    """A path from the folder that pytest was started in, not from one that the test went to."""
    try:
        return Path(os.path.relpath(path, config.invocation_params.dir)).as_posix()
    except ValueError:
        # Windows: on another drive.
        return path.as_posix()


def name_in_file(item: pytest.Item) -> str:
    """A test's name without its file."""
    return item.nodeid.partition("::")[2]


def file_name(name: str) -> str:
    """A test's name as that of a file, of at most 150 bytes."""
    safe = re.sub(r"[^\w.\[\]=,+-]+", "-", name)
    return safe.encode()[:150].decode(errors="ignore").strip("-.")


def rollout_path(item: pytest.Item) -> Path | None:
    """The file of a test's rollout, in a folder that `rt.read` and the commands take as a whole; None: none is kept."""
    folder = item.config.getoption("--rollout-dir") or item.config.getini("rollout_dir")
    if not folder:
        return None
    file, _, test = item.nodeid.partition("::")
    plain = f"{file.removesuffix('.py')}::{test}".replace("::", "-").replace("/", "-")
    name = file_name(plain)
    if name != plain or "/" in test:
        # Another test's name may have become the same.
        name += f"-{hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]}"
    return Path(item.config.invocation_params.dir, folder, f"{name}.jsonl")


_OPTIONS = {"ignore", "normalize", "order", "timing", "engine", "cli"}


def fail(text: str) -> NoReturn:
    """Fails the test with a text. Not `pytest.fail`: an exception that is being handled would be shown before it."""
    raise pytest.fail.Exception(text, pytrace=False) from None


def test_for(item: pytest.Item) -> ObservedTest:
    """Returns the object that records or replays a test, not yet started."""
    marks = list(item.iter_markers("replay"))
    options = _options(item, marks) if marks else None
    return ObservedTest(as_typed(item), _mode(item, options), options, _engine(item, marks))


def _options(item: pytest.Item, marks: Sequence[pytest.Mark]) -> CassetteOptions:
    """Returns the options in a test's marks; the nearest mark takes precedence."""
    chosen: dict[str, Any] = {}
    ignore: list[str] = []
    paths: list[Path] = []
    for mark in marks:
        unknown = sorted(set(mark.kwargs) - _OPTIONS)
        if unknown:
            _misused(f"there is no option {unknown[0]!r}; the options are {', '.join(sorted(_OPTIONS))}")
        for path in mark.args:
            if not isinstance(path, (str, os.PathLike)):
                _misused(f"{path!r:.80} is no path of a cassette")
            paths.append(item.path.parent / path)
        ignored = mark.kwargs.get("ignore", ())
        ignore += [ignored] if isinstance(ignored, str) else list(ignored)
        chosen = {**mark.kwargs, **chosen}
    if not isinstance(chosen.get("timing", False), bool):
        _misused(f"timing={chosen['timing']!r}: expected True or False")
    if not paths:
        paths = [item.path.parent / "cassettes" / item.path.stem / f"{file_name(name_in_file(item))}.jsonl"]
    try:
        given = tuple(ignore), chosen.get("normalize")
        if (cli := chosen.get("cli")) is None:
            matching = MatchOptions(*given, chosen.get("order", "recorded"))
        else:
            matching = _of_program(cli, *given, chosen.get("order"))
    except (TypeError, ValueError) as error:
        _misused(str(error).rstrip("."))
    return CassetteOptions(paths, matching, chosen.get("timing", False), chosen.get("cli"))


def _of_program(cli: str, ignore: tuple[str, ...], given: Callable[[Any], Any] | None, order: Any) -> MatchOptions:
    """The options of a test that runs a known program, beside those that it gives itself. Raises ValueError."""
    program = program_of((), cli)
    assert program is not None
    texts = [normalize.texts(pattern, instead) for pattern, instead in program.varying]
    every = normalize.chain(*([] if given is None else [given]), *texts, normalize.dates, normalize.uuids)
    # Sub-agents run at once, and which of them asks first is the machine's choice.
    return MatchOptions((*program.ignored, *ignore), every, order or "free")


def _misused(what: str) -> NoReturn:
    fail(f"@pytest.mark.replay: {what}.")


def _mode(item: pytest.Item, options: CassetteOptions | None) -> Mode:
    asked = item.config.getoption("--replay") or item.config.getini("rollout_replay")
    if options is None or asked == "off":
        return "off"
    if asked != "auto":
        return cast(Mode, asked)
    # In CI nothing may call a model unasked.
    return "replay" if _in_ci() or _is_recorded(options, name_in_cassette(as_typed(item))) else "record"


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def _is_recorded(options: CassetteOptions, name: str) -> bool:
    try:
        return all(bool(load(path, name)) for path in options.paths)
    except CassetteError:
        # One that is there and broken is not replaced unasked.
        return any(path.exists() and path.stat().st_size for path in options.paths)


def _engine(item: pytest.Item, marks: Sequence[pytest.Mark]) -> Any:
    given = next((mark.kwargs["engine"] for mark in marks if "engine" in mark.kwargs), None)
    engine = given or item.config.getini("rollout_engine") or None
    try:
        Options(engine)
    except (TypeError, ValueError) as error:
        where = "@pytest.mark.replay" if given else "rollout_engine in the ini file"
        fail(f"{where}: {str(error).rstrip('.')}.")
    return engine
