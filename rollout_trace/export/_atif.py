"""ATIF 1.8, the trajectory format of Harbor: one document for each run, with its sub-agents embedded."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Collection, Iterator
from hashlib import sha256
from mimetypes import guess_extension
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rollout_trace.export._atif_steps import MediaPath, Steps, final_metrics, model_of, trajectory_facts, without_none
from rollout_trace.export._conversations import ConversionCache
from rollout_trace.export._exporter import Exporter, RowIterator, exporting
from rollout_trace.export._rows import episodes
from rollout_trace.export._values import strict_json
from rollout_trace.file.addresses import replacing
from rollout_trace.file.plain import dumps
from rollout_trace.report import ExportReport
from rollout_trace.train.selection import check_allow

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import Strict


@Exporter
def atif(
    trajectories: Trajectories,
    *,
    agent_version: str = "unknown",
    allow: Collection[str] = (),
    strict: Strict = False,
    report: ExportReport | None = None,
) -> RowIterator:
    """Exports ATIF 1.8 documents (``harbor.models.trajectories.Trajectory``), one for each outermost trajectory.

    Each call is an agent step with metrics: the ids of the whole prompt, and the ids and logprobs of the completion.
    New system and user messages of its request come before it; tool results are observations of the step that called
    the tools. If a call does not continue the step before it (several choices, a fork, a rewritten history),
    ``extra.follows`` is the number of the step it continues, 0 for none. Answers in a request that do not come from a
    step are marked ``is_copied_context``. Trajectories opened inside another one are embedded in it, and referenced
    from the step after which they began. What ATIF has no field for (status, reward, policy version, group, task) is in
    ``extra``; calls without an answer are in ``extra["failed_calls"]``.

    Steps that ``Trajectory.sequences()`` leaves out have no ids and logprobs, because readers of ATIF train on all that
    they find.

    Args:
        agent_version: value of ``agent.version``, which ATIF requires and recordings do not have.
        allow: reasons that do not withhold ids, such as ``{"abandoned", "retokenized"}``.
    """
    check_allow(allow)

    def make(counts: ExportReport, raw: bool) -> Iterator[Row]:
        found = _documents(trajectories, agent_version, allow, counts, _unchanged_url, arrays=raw)
        return (document for document, _ in found)

    return RowIterator("atif", strict, report, make, checked=True)


def _unchanged_url(media_type: str, url: str) -> str:
    return url


def _documents(
    trajectories: Trajectories,
    version: str,
    allow: Collection[str],
    report: ExportReport,
    media_path: MediaPath,
    *,
    arrays: bool,
) -> Iterator[tuple[Row, Trajectory]]:
    """Each document with its outermost trajectory; ``arrays`` as for ``strict_json``."""
    for group in episodes(trajectories, report):
        episode = _Episode(group, version, allow, report, media_path)
        for trajectory in group:
            report.read_one()
            if not episode.has_parent(trajectory):
                document = episode.document(trajectory)
                yield strict_json(document, report, f"trajectory {trajectory.id}", arrays=arrays), trajectory
        # Parents that form a circle, in a file of another program: none of them is outermost.
        report.drop("trajectories that are inside each other", len(group) - episode.seen)


class _Episode:
    """The trajectories of one episode, by parent; ``seen`` counts those that are in a document."""

    def __init__(
        self, group: list[Trajectory], version: str, allow: Collection[str], report: ExportReport, media_path: MediaPath
    ) -> None:
        self.seen = 0
        self._ids = {trajectory.id for trajectory in group}
        self._children: dict[str, list[Trajectory]] = {}
        for trajectory in group:
            if self.has_parent(trajectory):
                self._children.setdefault(str(trajectory.parent_id), []).append(trajectory)
        self._version, self._allow, self._report, self._media_path = version, allow, report, media_path

    def has_parent(self, trajectory: Trajectory) -> bool:
        """Whether the trajectory in which it was opened is in this episode."""
        return trajectory.parent_id in self._ids

    def document(self, trajectory: Trajectory) -> dict[str, Any]:
        """The document of a trajectory, with the documents of those inside it."""
        self.seen += 1
        children = self._children.get(trajectory.id, [])
        inner = [self.document(child) for child in children]
        steps = Steps(trajectory, children, self._allow, self._report, self._media_path)
        missing = trajectory.parent_id is not None and not self.has_parent(trajectory)
        notes = [*steps.notes, *(["The trajectory in which this one was opened is not here."] if missing else ())]
        return without_none(
            {
                "schema_version": "ATIF-v1.8",
                "session_id": trajectory.episode_id,
                "trajectory_id": trajectory.id,
                "agent": self._agent(trajectory),
                "steps": [without_none({**step, "extra": step["extra"] or None}) for step in steps.all],
                "notes": " ".join(notes) or None,
                "final_metrics": final_metrics(trajectory, len(steps.all), inner),
                "extra": trajectory_facts(trajectory, steps.failed) or None,
                "subagent_trajectories": inner or None,
            }
        )

    def _agent(self, trajectory: Trajectory) -> dict[str, Any]:
        cache = ConversionCache(self._report, f"trajectory {trajectory.id}")
        tools: dict[str, Any] = {}
        sizes = []
        for step in trajectory.steps:
            offered = cache.tools(step)
            sizes.append(len(offered))
            for tool in offered:
                tools.setdefault(json.dumps(tool, sort_keys=True, default=str), tool)
        fewer = sum(size < len(tools) for size in sizes)
        where = f"trajectory {trajectory.id}"
        self._report.drop("tools by step, where not all steps have all", fewer, where=where, metadata=True)
        model = next((name for step in trajectory.steps if (name := model_of(step)) is not None), None)
        agent = {"name": trajectory.name, "version": self._version, "model_name": model}
        return without_none({**agent, "tool_definitions": list(tools.values()) or None})


def write_atif(
    folder: str | os.PathLike[str],
    trajectories: Trajectories,
    *,
    agent_version: str = "unknown",
    allow: Collection[str] = (),
    strict: Strict = False,
    report: ExportReport | None = None,
) -> int:
    """Writes each document of ``atif`` to a file of its own, and returns their number.

    A file is named after the id of its outermost trajectory, and is written whole or not at all. Images and audio in
    data URLs are written to the subfolder ``media``, named by their sha256, and referenced by that path, as in ATIF.

    Raises:
        OSError: a file cannot be written.
    """
    check_allow(allow)
    place = Path(folder)
    with exporting("write_atif", strict, report) as counts:
        names: dict[str, int] = {}
        for document, trajectory in _documents(trajectories, agent_version, allow, counts, _Media(place), arrays=True):
            name = quote(trajectory.id, safe="")
            # The same trajectory may be given twice; like `atif`, this gives two documents.
            names[name] = names.get(name, 0) + 1
            number = "" if names[name] == 1 else f"-{names[name]}"
            with replacing(place / f"{name}{number}.json") as file:
                file.write(dumps(document))
        return sum(names.values())


class _Media:
    """Writes the contents of data URLs to files and returns their paths in the folder; other URLs are unchanged."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[str] = set()

    def __call__(self, media_type: str, url: str) -> str:
        head, _, data = url.partition(",")
        if not head.startswith("data:") or not head.endswith(";base64"):
            return url
        try:
            content = base64.b64decode(data, validate=True)
        except binascii.Error:
            return url
        name = f"media/{sha256(content).hexdigest()}{guess_extension(media_type) or ''}"
        if name not in self._written:
            with replacing(self._folder / name) as file:
                file.write(content)
            self._written.add(name)
        return name
