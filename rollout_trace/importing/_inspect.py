"""Logs of inspect_ai: ``.eval`` (a zip of JSON) and ``.json``."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from rollout_trace.data.model import Task
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.errors import FormatError
from rollout_trace.file.compression import import_zstandard
from rollout_trace.file.lines import LONGEST_LINE
from rollout_trace.importing._inspect_sample import Sample
from rollout_trace.importing.chat import error_of
from rollout_trace.importing.fields import Fields, OnError, Place
from rollout_trace.importing.imported import Imported, ImportReport, Job, each_file, imported
from rollout_trace.importing.inputs import Given, Input, document, one_object

_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""What inspect's own metrics make of these values of a score."""


def inspect(
    path: Given, *, score: str | None = None, on_error: OnError = "raise", report: ImportReport | None = None
) -> Imported:
    """Reads logs of inspect_ai: one trajectory for each epoch of a sample, and one for each of its sub-agents.

    Each model event is a call, and each of its choices a step; steps of attempts before a retry are ``superseded``. The
    runs of one sample share a ``group_id`` (``TASK/SAMPLE``); ``rollout_index`` is the epoch, from 0. Scores that are
    numbers, booleans or the grades ``C``, ``P``, ``I``, ``N`` are in ``rewards``; ``reward`` is the one named by
    ``score``, or the only one. Calls in another role than the agent's (a grader) are not trainable. Samples are read
    one at a time.

    Args:
        path: files, folders, patterns, addresses, or an open file.
        score: name of the score that is the reward, such as ``includes``, or ``NAME/KEY`` of one with several values.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
    """

    def samples(source: Input, job: Job) -> Iterator[Trajectory]:
        for log, sample in logs_of(source, job):
            yield from job.guarded(lambda: _trajectories(log, sample, job, score))  # noqa: B023

    return imported("inspect", path, (".eval", ".json"), on_error, report, each_file(samples))


def _trajectories(log: Log, fields: Fields, job: Job, score: str | None) -> Iterator[Trajectory]:
    sample = Sample(fields, log.model, job)
    name = fields.require_name("id")
    epoch = fields.count("epoch")
    scores, whole = _scores(fields, score, job)
    root: Trajectory | None = None
    ids: dict[str, str] = {}
    """Of the trajectories, by their agents'."""
    own = fields.name("uuid") or f"{log.run_id or log.name}.{name}.{epoch or 1}"
    for agent in sample.agents:
        made = Trajectory(
            id=job.unique_id(own if root is None else f"{own}.{agent.id}"),
            name=agent.name or log.solver or "agent",
            steps=agent.steps,
            tool_runs=agent.tool_runs,
            metadata={"imported": {"source": "inspect", "log": log.name}},
        )
        ids[agent.id] = made.id
        if root is None:
            root = made
            _add_facts(made, fields, log, name, epoch)
            made.rewards, made.reward = scores or None, whole
        else:
            around, step = sample.parent_of(agent)
            made.episode_id, made.group_id = root.episode_id, root.group_id
            made.parent_id, made.parent_step_id = ids.get(around.id, root.id), None if step is None else step.id
            times = [step.started_at for step in agent.steps if step.started_at is not None]
            made.started_at, made.rollout_index = min(times, default=None), root.rollout_index
        yield made


def _add_facts(made: Trajectory, fields: Fields, log: Log, name: str, epoch: int | None) -> None:
    made.group_id = f"{log.task or log.name}/{name}"
    made.rollout_index = None if not epoch else epoch - 1
    data = {key: fields.get(key) for key in ("input", "target", "choices") if fields.get(key) is not None}
    data["metadata"] = fields.get("metadata")
    made.task = Task(id=made.group_id, data={key: value for key, value in data.items() if value})
    made.started_at, made.ended_at = fields.time("started_at"), fields.time("completed_at")
    made.error = error_of(fields.get("error"))
    made.status = "failed" if made.error is not None else "completed"
    made.stop_reason = fields.object("limit").text("type")
    made.environment = log.environment
    # Their events are steps.
    retries = [{k: v for k, v in one.values.items() if k != "events"} for one in fields.objects("error_retries")]
    facts: dict[str, Any] = {"scores": fields.get("scores"), "error_retries": retries}
    made.metadata = {**(made.metadata or {}), **{key: value for key, value in facts.items() if value}}


def _scores(fields: Fields, chosen: str | None, job: Job) -> tuple[dict[str, float], float | None]:
    """The scores as numbers by their names, and the one that is the reward."""
    found: dict[str, float] = {}
    scores = fields.object("scores")
    for name in scores.values:
        value = scores.object(name).get("value")
        for key, one in value.items() if isinstance(value, dict) else [("", value)]:
            number = _number(one)
            if number is None:
                job.report.drop("scores that are no numbers", one is not None)
            else:
                found[f"{name}/{key}" if key else name] = number
    if chosen is not None:
        job.report.miss(f"the score {chosen}", chosen not in found)
        return found, found.get(chosen)
    if len(found) > 1:
        job.report.miss("rewards: there are several scores, and score= names none")
        return found, None
    job.report.miss("rewards", not found)
    return found, next(iter(found.values()), None)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _GRADES.get(value)
    if isinstance(value, (bool, int, float)) and abs(value) < float("inf"):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


_ZSTD = 93
_LOCAL_HEADER = 30
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError,
            struct.error)  # fmt: skip
"""What ``zipfile`` raises for archives that are damaged, encrypted, or of an unknown kind."""


@dataclass
class Log:
    """The header of a log: everything except its samples."""

    name: str
    task: str | None = None
    run_id: str | None = None
    model: str | None = None
    solver: str | None = None
    environment: dict[str, Any] | None = None


def logs_of(source: Input, job: Job) -> Iterator[tuple[Log, Fields]]:
    """Each sample of a file, with its log."""
    with source.opened() as file:
        begin = file.read(4)
        file.seek(0)
        if begin[:2] == b"PK":
            yield from _from_zip(source, file, job)
            return
    whole = document(source, job.problems)
    if whole is None:
        return
    if not whole.object("eval"):
        job.problems.add(whole.place.error("$.eval", "a log of inspect", "none"))
        return
    log = _log(whole, source)
    if whole.get("samples") is None:
        job.report.drop("logs without samples")
    for sample in whole.objects("samples"):
        yield log, sample


def _log(header: Fields, source: Input) -> Log:
    spec = header.object("eval")
    facts = {name: spec.text(name) for name in ("task", "run_id", "model", "solver")}
    found = {
        "inspect_ai": spec.mapping("packages").get("inspect_ai"),
        "git": spec.get("revision"),
        "model": facts["model"],
    }
    environment = {name: value for name, value in found.items() if value is not None} or None
    return Log(source.stem, **facts, environment=environment)


def _from_zip(source: Input, file: BinaryIO, job: Job) -> Iterator[tuple[Log, Fields]]:
    place = Place(source.path, None, job.problems)
    try:
        archive = zipfile.ZipFile(file)
    except _BAD_ZIP as error:
        job.problems.add(FormatError(f"{place}: this .eval file (a zip) is damaged: {error}."))
        return
    with archive:
        names = {info.filename: info for info in archive.infolist()}
        head = names.get("header.json") or names.get("_journal/start.json")
        if "header.json" not in names:
            job.report.note("logs of runs that did not end, without their header")
        header = None if head is None else _member(archive, head, file, source, job)
        log = Log(source.stem) if header is None else _log(header, source)
        for info in archive.infolist():
            if info.filename.startswith("samples/") and info.filename.endswith(".json"):
                sample = _member(archive, info, file, source, job)
                if sample is not None:
                    yield log, sample


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO, source: Input, job: Job) -> Fields | None:
    place = Place(f"{source.path}, {info.filename}", None, job.problems)
    try:
        return one_object(lambda: _bytes(archive, info, file, source.path), place)
    except ImportError:
        raise
    except _BAD_ZIP as error:
        job.problems.add(FormatError(f"{place}: this member of the zip cannot be read: {error}."))
        return None


def _bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO, path: str) -> bytes:
    if info.file_size > LONGEST_LINE:
        raise ValueError(f"it has more than {LONGEST_LINE} bytes")
    if info.compress_type != _ZSTD:
        with archive.open(info) as member:
            # What the zip says of its size need not be true.
            found = member.read(LONGEST_LINE + 1)
        if len(found) > LONGEST_LINE:
            raise ValueError(f"it has more than {LONGEST_LINE} bytes")
        return found
    # `zipfile` opens these from Python 3.14 on.
    zstandard = import_zstandard(path)
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    file.seek(info.header_offset + _LOCAL_HEADER + name_length + extra_length)
    packed = file.read(info.compress_size)
    try:
        with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
            content: bytes = reader.read(LONGEST_LINE + 1)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(content) > LONGEST_LINE or (info.file_size and len(content) != info.file_size):
        raise ValueError(f"its size is not the {info.file_size} bytes that the zip names")
    return content
