"""``rollout-trace view PATH...``."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollout_trace.cli.common import (
    Test,
    check_new,
    json_option,
    load_tokenizer_of,
    show,
    show_problems,
    tokenizer_option,
    where_option,
)
from rollout_trace.cli.reading import Trajectories
from rollout_trace.guard import printable

if TYPE_CHECKING:
    from rollout_trace.view.page_data import PageData

_IN_A_FILE = 100
"""Trajectories in a page that is a file, where no number is given."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. Default: a free one.")
@click.option("--no-open", is_flag=True, help="Print the address, but open no browser.")
@click.option("--read-only", is_flag=True, help="Forbid editing rewards and labels on the page.")
@tokenizer_option
@click.option("--cache", metavar="DIR", help="Folder for the index. Default: your cache folder.")
@click.option("--no-cache", is_flag=True, help="Do not keep the index; build it each time.")
@click.option("--html", metavar="OUT", help="Write the page into one file instead of serving it.")
@where_option
@click.option(
    "-n", "number", type=click.IntRange(min=1), metavar="N", help="With --html: write the first N.  [default: 100]"
)
@click.option("--overwrite", is_flag=True, help="With --html: replace OUT if it exists.")
@json_option
def view(
    paths: tuple[str, ...],
    port: int,
    no_open: bool,
    read_only: bool,
    tokenizer: str | None,
    cache: str | None,
    no_cache: bool,
    html: str | None,
    where: Test | None,
    number: int | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Open trajectories in the browser.

    PATH is a file, a folder, a pattern, or an address. The page is served on this machine alone, until Ctrl-C; whoever
    has its address, with the token in it, can read the files and write notes (rollout-trace annotate). Files may grow
    meanwhile. An index of them is built in the background and kept in a cache; nothing is written beside the files but
    the notes that are made on the page.

    With --html OUT a selection of the trajectories is written into one file, which needs no server and loads nothing.
    PATH can then be - for stdin too.

    Exit code 1: with --html, lines that could not be read, or no trajectory.
    """
    if html is not None:
        if os.path.isdir(html):
            raise click.UsageError(f"{html} is a folder: give the name of a file.")
        check_new(html, overwrite=overwrite)
        page = {"title": _title(paths), "decode": load_tokenizer_of(tokenizer), "tokenizer": tokenizer}
        return _write(Trajectories(paths, where, progress=True), html, number or _IN_A_FILE, page, as_json=as_json)
    if where is not None or number is not None or overwrite:
        raise click.UsageError(
            "--where, -n and --overwrite work only with --html OUT. To choose trajectories on the page, use its search "
            "box."
        )
    from rollout_trace.view.index import Index
    from rollout_trace.view.index_cache import cache_folder
    from rollout_trace.view.page_data import PageData

    if "-" in paths:
        raise click.UsageError("view reads stdin only with --html OUT. Write it to a file first.")
    if cache is not None and no_cache:
        raise click.UsageError("--cache and --no-cache cannot be used together.")
    decode = load_tokenizer_of(tokenizer)
    index = Index(paths, None if no_cache else cache_folder() if cache is None else Path(cache))
    try:
        data = PageData(index, title=_title(paths), writable=not read_only, decode=decode, tokenizer=tokenizer)
        return _serve(data, port, opens=not no_open, as_json=as_json)
    finally:
        index.close()


def _write(found: Trajectories, out: str, number: int, page: dict[str, Any], *, as_json: bool) -> int:
    from rollout_trace.view.static import write_static

    first = ((one.path, one.trajectory) for one in islice(found, number))
    written = write_static(out, first, **page)
    left_out = next(found, None) is not None
    found.close()
    result = {
        "output": out,
        "trajectories": written.trajectories,
        "bytes": written.size,
        "is_cut": left_out,
        "unreadable": [str(error) for error in found.problems],
    }
    more = f", the first {number}; -n takes more, --where chooses others" if left_out else ""
    show([f"{written.trajectories} trajectories in {out} ({written.size / 1e6:.1f} MB){more}"], result, as_json=as_json)
    show_problems(found.problems, as_json=as_json)
    return int(bool(found.problems) or not written.trajectories)


def _serve(data: PageData, port: int, *, opens: bool, as_json: bool) -> int:
    from rollout_trace.view.server import PageServer

    try:
        server = PageServer(data, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.UsageError(
            f"port {port} is not available ({reason}). Give another port, or leave --port out."
        ) from error
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if as_json:
            click.echo(json.dumps({"address": server.address}))
        else:
            click.echo(f"The page is at {server.address}\nCtrl-C ends it.")
        sys.stdout.flush()
        if opens and _has_display():
            threading.Thread(target=_open, args=(server.address,), daemon=True).start()
        server.serve()
    except KeyboardInterrupt:
        # This is how a page is ended: nothing went wrong.
        pass
    finally:
        server.close()
    return 0


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _has_display() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _open(address: str) -> None:
    import webbrowser

    try:
        webbrowser.open(address)
    except Exception:
        # The address is on the terminal.
        pass


def _title(paths: tuple[str, ...]) -> str:
    """What the page is of, in a few words."""
    first = os.path.basename(paths[0].rstrip("/")) or paths[0]
    return printable(first if len(paths) == 1 else f"{first} and {len(paths) - 1} more", 80)
