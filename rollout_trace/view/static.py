"""The page as one file that opens from disk: a selection of trajectories inside, compressed, each unpacked when it is
opened."""

from __future__ import annotations

import gzip
import math
import os
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.addresses import replacing
from rollout_trace.view.assets import whole_page
from rollout_trace.view.model import Alternative, StepView, Summary, Tokens
from rollout_trace.view.page_data import about
from rollout_trace.view.tokens import TokenTexts
from rollout_trace.view.trajectory_view import TrajectoryView
from rollout_trace.view.values import builtins, encode, indented, plain


class Written(NamedTuple):
    """The result of writing."""

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
            file.write(_embedded(f"rollout-{key}", _contents(view, packer)))
        data = {"info": plain(about(title, files, tokenizer)), "summaries": summaries, "names": packer.names}
        file.write(_embedded("rollout-data", data))
        file.write(after.encode())
        size = file.tell()
    return Written(len(summaries), size)


def _contents(view: TrajectoryView, packer: Packer) -> dict[str, Any]:
    # The family stands in the list, with its addresses.
    outline = replace(view.outline, family=[])
    raw = [
        {name: indented(getattr(step, f"{name}_bytes")) for name in ("request", "response")}
        if step.request_bytes is not None or step.response_bytes is not None
        else None
        for step in view.trajectory.steps
    ]
    kept = {"raw": raw} if any(raw) else {}
    return {"outline": outline, "steps": packer.steps(view.steps()), **kept}


def _embedded(identity: str, value: Any) -> bytes:
    """An element with compressed JSON. Base64 has no character that HTML gives a meaning."""
    packed = b64encode(gzip.compress(encode(value), 6, mtime=0))
    return b'<script type="application/gzip" id="%s">%s</script>\n' % (identity.encode(), packed)


_Name: TypeAlias = tuple[str | None, int | None]
"""Text and id of a token."""


class Packer:
    """Packs the steps of trajectories; ``names`` are the texts and ids that their tokens refer to.

    Numbers keep the digits that the page shows: logprobs of sampled tokens are as recorded, entropies have three behind
    the point, logprobs of alternatives at most three.
    """

    def __init__(self) -> None:
        self._numbers: dict[_Name, int] = {}

    @property
    def names(self) -> dict[str, list[Any]]:
        """In columns, in the order of their numbers."""
        return {"texts": [text for text, _ in self._numbers], "ids": [id for _, id in self._numbers]}

    def steps(self, views: Sequence[StepView]) -> list[dict[str, Any]]:
        """The steps, as JSON holds them."""
        packed = []
        for view in views:
            tokens, view.tokens = view.tokens, None
            step = builtins(view)
            view.tokens = tokens
            packed.append(step if tokens is None else {**step, "tokens": self._tokens(tokens)})
        return packed

    def _number(self, name: _Name) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def _tokens(self, tokens: Tokens) -> dict[str, Any]:
        texts: Sequence[str | None] = tokens.texts or [None] * tokens.n
        ids: Sequence[int | None] = tokens.ids or [None] * tokens.n
        names: list[_Name] = list(zip(texts, ids, strict=True))
        packed: dict[str, Any] = {"n": tokens.n, "names": [self._number(name) for name in names]}
        if tokens.texts is None:
            packed["no_texts"] = True
        if tokens.ids is None:
            packed["no_ids"] = True
        if tokens.logprobs is not None:
            packed["logprobs"] = tokens.logprobs
        if tokens.entropy is not None:
            packed["entropy"] = [None if value is None else round(value * 1_000) for value in tokens.entropy]
        if tokens.log_ratios is not None:
            packed["log_ratios"] = tokens.log_ratios
        if tokens.alternatives is not None:
            logprobs = tokens.logprobs or [None] * tokens.n
            sampled = [(*name, logprob) for name, logprob in zip(names, logprobs, strict=True)]
            packed["alternatives"] = self._alternatives(tokens.alternatives, sampled)
        return packed

    def _alternatives(
        self,
        all_of_them: Sequence[Sequence[Alternative]],
        sampled: Sequence[tuple[str | None, int | None, float | None]],
    ) -> dict[str, list[Any]]:
        """Their number at each token; their names, -1 for the token that was sampled; the logprobs of the others."""
        counts, names, logprobs = [], [], []
        for some, token in zip(all_of_them, sampled, strict=True):
            counts.append(len(some))
            for one in some:
                if (one.text, one.id, one.logprob) == token:
                    names.append(-1)
                else:
                    names.append(self._number((one.text, one.id)))
                    logprobs.append(_chance(one.logprob))
        return {"counts": counts, "names": names, "logprobs": logprobs}


def _chance(logprob: float | None) -> int | None:
    """Thousandths of a logprob, as exact as its probability is shown: less where that is below 0.1, and below 0.01."""
    if logprob is None or not math.isfinite(logprob):
        return None
    digits = 3 if logprob > -2.3 else 2 if logprob > -4.6 else 1
    return round(1_000 * round(logprob, digits))
