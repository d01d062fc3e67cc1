"""The page as one file that opens from disk: a selection of trajectories inside, compressed, each unpacked when it is
opened."""

from __future__ import annotations

import gzip
import os
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from rollout_trace._version import __version__
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.replacing import replacing
from rollout_trace.view.assets import whole_page
from rollout_trace.view.model import Summary
from rollout_trace.view.packed_tokens import Packer
from rollout_trace.view.tokens import TokenTexts
from rollout_trace.view.trajectory_view import TrajectoryView
from rollout_trace.view.values import builtins, encode, plain


class Written(NamedTuple):
    """What was written."""

    trajectories: int
    size: int
    """Bytes."""


def write_static(
    path: str | os.PathLike[str],
    trajectories: Iterable[tuple[str, Trajectory]],
    *,
    title: str,
    decode: TokenTexts | None = None,
    tokenizer: str | None = None,
) -> Written:
    """Writes the page with these trajectories inside. An existing file is replaced after the last one.

    All of them are in memory at once.

    Args:
        path: the file to write.
        trajectories: with the path of the file of each.
        title: of the page.
        decode: a tokenizer, for tokens whose texts the engine did not send.
        tokenizer: its name.

    Raises:
        OSError: the file cannot be written.
    """
    before, after = whole_page(title)
    files: dict[str, int] = {}
    views = []
    for source, trajectory in trajectories:
        files.setdefault(source, len(files))
        views.append((source, TrajectoryView(trajectory, decode=decode)))
    families: dict[str | None, list[Summary]] = {}
    for _, view in views:
        families.setdefault(view.summary.episode, []).append(view.summary)
    summaries = []
    packer = Packer()
    with replacing(path) as file:
        file.write(before.encode())
        for at, (source, view) in enumerate(views):
            key = f"{files[source]}-{at}"
            view.family = families[view.summary.episode]
            summaries.append({**builtins(view.summary), "key": key})
            file.write(_embedded(f"rollout-{key}", _contents(view, files[source], packer)))
        data = {"info": _info(title, files, tokenizer), "summaries": summaries, "names": packer.names}
        file.write(_embedded("rollout-data", data))
        file.write(after.encode())
        size = file.tell()
    return Written(len(summaries), size)


def _contents(view: TrajectoryView, file: int, packer: Packer) -> dict[str, Any]:
    # The family stands in the list, with its addresses.
    outline = replace(view.outline, family=[])
    raw = [
        {name: _text(getattr(step, f"{name}_bytes")) for name in ("request", "response")}
        if step.request_bytes is not None or step.response_bytes is not None
        else None
        for step in view.trajectory.steps
    ]
    kept = {"raw": raw} if any(raw) else {}
    return {"file": file, "outline": outline, "steps": packer.steps(view.steps()), **kept}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _info(title: str, files: dict[str, int], tokenizer: str | None) -> dict[str, Any]:
    listed = [{"path": path, "name": os.path.basename(path) or path} for path in files]
    return plain({"version": __version__, "title": title, "files": listed, "tokenizer": tokenizer})  # type: ignore[no-any-return]


def _embedded(identity: str, value: Any) -> bytes:
    """An element with compressed JSON. Base64 has no character that HTML gives a meaning."""
    packed = b64encode(gzip.compress(encode(value), 6, mtime=0))
    return b'<script type="application/gzip" id="%s">%s</script>\n' % (identity.encode(), packed)
