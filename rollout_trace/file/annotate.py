"""Notes what becomes known of trajectories after they were written: ``annotate``, and episodes that are thrown away."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from rollout_trace._wrong_use import explained
from rollout_trace.data import user_values
from rollout_trace.data.episodes import FIELD, Attempts, episode_of, may_be_trained, noted
from rollout_trace.data.trainer_tokens import TRAINER_CHECKS, TRAINER_VALUES
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.data.user_values import Metrics, Rewards, brief
from rollout_trace.errors import WriteError
from rollout_trace.file.addresses import is_address, refuse_special_file, shown, to_local
from rollout_trace.file.append import AppendedFile, AppendError
from rollout_trace.file.arrays import fragment
from rollout_trace.file.decode import decode
from rollout_trace.file.find import TrajectoryHead, heads, ids_in, is_plain
from rollout_trace.file.line_format import BadLine, LineFormat, at_any_depth
from rollout_trace.file.lines import Place
from rollout_trace.file.notes import STEP_VALUES, SUFFIX, is_notes_file, load_notes, notes_path
from rollout_trace.file.plain import dumps
from rollout_trace.file.reader import expand_paths
from rollout_trace.file.records import NOTE_SCHEMA, SCHEMA
from rollout_trace.file.shards import lines_among

PathLike: TypeAlias = "str | os.PathLike[str]"

_LOCK_TIMEOUT = 10.0
"""Seconds that the lock on a file of notes is waited for."""


@explained
def annotate(
    path: PathLike,
    trajectory_id: str,
    *,
    reward: float | None = None,
    rewards: Mapping[str, float | None] | None = None,
    metrics: Mapping[str, float | None] | None = None,
    metadata: Mapping[str, Any] | None = None,
    steps: Mapping[str | int, Mapping[str, Any]] | None = None,
) -> None:
    """Adds values to a trajectory that was already written, such as a reward. Readers of the file apply them.

    It appends one line, a note, to a notes file beside ``path`` (``rollouts.notes.jsonl`` beside ``rollouts.jsonl`` or
    ``rollouts.jsonl.gz``); the file itself is not changed. Later notes win, field by field; ``rewards``, ``metrics``
    and ``metadata`` are merged by name. None means not given: a note cannot remove a value. Any number of threads and
    processes can annotate the same file.

    Args:
        path: path of the file with the trajectory, or of a folder of shards, which is searched for it.
        trajectory_id: its ``id``. In a single file it is not looked up, which would mean reading the whole file;
            readers log a warning that names notes without a trajectory.
        reward: as ``Trajectory.reward``.
        rewards: as ``Trajectory.rewards``.
        metrics: as ``Trajectory.metrics``.
        metadata: as ``Trajectory.metadata``.
        steps: values for single steps, by the step's id or ``index``: a dict with any of ``reward``, ``advantage``,
            ``trainable``, ``policy_version``, ``metadata``; and of a trainer's numbers, one for each completion token:
            ``trainer_logprobs``, ``entropy``, ``reference_logprobs``, ``loss_weights``. For these the trajectory's line
            is read to check their lengths. For rows, see ``rt.trainer_report``.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError, ValueError: a value does not suit its field, or no value is given; or the path is an address, or a
            folder in which no file has the trajectory.
        WriteError: the notes cannot be written, or stayed locked for 10 seconds.
        OSError: the notes file cannot be opened.
    """
    values = {"reward": reward, "rewards": rewards, "metrics": metrics, "metadata": metadata, "steps": steps}
    note = checked_note(trajectory_id, values)
    files = files_with(path, {trajectory_id})
    if any("trainer" in step for step in note.get("steps", ())):
        for file in files:
            check_trainer_numbers(file, [note])
    for file in files:
        append_notes(file, [note])


def check_trainer_numbers(path: PathLike, notes: Iterable[Mapping[str, Any]], *, may_be_cut: bool = False) -> None:
    """Looks up the trajectories of notes in their file, in one pass, and compares a trainer's numbers with the steps.

    Args:
        may_be_cut: a step may have more tokens than there are numbers.

    Raises:
        ValueError: the file has not such a trajectory or step, or numbers are not one for each token.
        FileNotFoundError, ValueError, OSError: as ``append_notes``.
    """
    file, _ = _noted_file(path)
    by_id = {note["id"]: note for note in notes}
    # By id: of two lines of a trajectory the later one counts.
    problems: dict[str, str | None] = {}
    for line, head in heads(file, _ignore, LineFormat(SCHEMA, TrajectoryHead)):
        if head.id in by_id:
            try:
                trajectory = at_any_depth(decode, line)
            except BadLine:
                continue
            problems[head.id] = next(_misfits(trajectory, by_id[head.id], may_be_cut), None)
    for one in by_id:
        if problem := problems.get(one, f"{shown(file)} has no trajectory {brief(one)}"):
            raise ValueError(f"{problem}: no note was written.")


def _misfits(trajectory: Trajectory, note: Mapping[str, Any], may_be_cut: bool) -> Iterator[str]:
    for given in note["steps"]:
        named = (one for one in trajectory.steps if given.get("id") == one.id or given.get("index") == one.index)
        step = next(named, None)
        for name, array in given.get("trainer", {}).items():
            place = f"steps[{given.get('id', given.get('index'))!r}][{name!r}]"
            if step is None:
                yield f"{place}: trajectory {brief(note['id'])} has no such step"
                continue
            ids, numbers = step.completion_token_ids, array["shape"][0]
            if ids is None or numbers > len(ids) or (numbers < len(ids) and not may_be_cut):
                tokens = "no completion ids" if ids is None else f"{len(ids)} completion tokens"
                yield f"{place} has {numbers} numbers, and the step has {tokens}"


def files_with(path: PathLike, trajectory_ids: Collection[str]) -> dict[PathLike, Collection[str]]:
    """The file itself, or those of a folder that have the trajectories: one for each, unless something wrote it twice.

    Raises:
        ValueError: no file of the folder has one of them.
    """
    if not isinstance(path, (str, os.PathLike)) or not os.path.isdir(folder := to_local(path)):
        return {path: trajectory_ids}
    files = [os.path.join(folder, name) for name in lines_among(os.listdir(folder)) if not name.endswith(SUFFIX)]
    found: dict[PathLike, Collection[str]] = {file: ids for file in files if (ids := ids_in(file, trajectory_ids))}
    missing = [one for one in trajectory_ids if not any(one in ids for ids in found.values())]
    if missing:
        raise ValueError(f"no file of the folder {folder} has trajectory {brief(missing[0])}: no note was written.")
    return found


def checked_note(trajectory_id: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a note.

    Args:
        values: as the arguments of ``annotate``; None is not given.

    Raises:
        TypeError, ValueError: as ``annotate``.
    """
    if not isinstance(trajectory_id, str) or not trajectory_id:
        kind = type(trajectory_id).__name__
        raise TypeError(f"trajectory_id is {brief(trajectory_id)} ({kind}); give the id of a trajectory as text.")
    note: dict[str, Any] = {}
    for name, value in values.items():
        checked = None if value is None else _CHECKS[name](value, name)
        # An empty dict gives nothing either.
        if checked is not None and checked != {} and checked != []:
            note[name] = checked
    if not note:
        raise ValueError(f"no value is given for trajectory {brief(trajectory_id)}: give any of {', '.join(_CHECKS)}.")
    return {"id": trajectory_id, "at": datetime.now(timezone.utc), **note}


def append_notes(path: PathLike, notes: Iterable[Mapping[str, Any]]) -> None:
    """Appends notes, as ``checked_note`` makes them, to the file of notes beside ``path``: all of them or none.

    Raises:
        FileNotFoundError: there is no file ``path``.
        ValueError: it is itself a file of notes, or its notes would go to a file of trajectories.
        WriteError, OSError: as ``annotate``.
    """
    file, mode = _noted_file(path)
    beside = notes_path(file)
    if os.path.exists(beside) and not is_notes_file(beside):
        raise ValueError(
            f"{beside} is a file of trajectories, but has the name of the notes of {file}. Rename it so that it does "
            f"not end with {SUFFIX}."
        )
    data = b"".join(dumps({"schema": NOTE_SCHEMA, **note}, orjson.OPT_APPEND_NEWLINE) for note in notes)
    notes_file = AppendedFile(Path(beside).absolute(), Path(beside), ends_lines=True, fsync=False, mode=mode)
    try:
        notes_file.append(data, _LOCK_TIMEOUT)
    except AppendError as error:
        left = error.left.replace("its line", "what was to be noted").replace("Its line", "What was to be noted")
        raise WriteError(f"{beside} could not be written: {error.cause}. {left}.") from error.cause
    finally:
        notes_file.close()


def _noted_file(path: PathLike) -> tuple[str, int]:
    """The local path of a file of trajectories, and the permissions of its notes. Raises as ``append_notes``."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f'expected the path of a file, such as "rollouts.jsonl", got {brief(path)}.')
    file = to_local(path)
    if is_address(file):
        raise ValueError(
            f"{shown(file)} is an address, where no note can be appended. Copy its shards to a local folder and "
            "annotate them there, or apply the value to what rt.read() yields."
        )
    refuse_special_file(file)
    try:
        state = os.stat(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {file}: give the path of the file with the trajectory.") from None
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(f"{file} is a folder: give the path of the file with the trajectory.")
    if not stat.S_ISREG(state.st_mode):  # /dev/null, which can be written and read.
        raise ValueError(f"{file} holds no trajectories. Give the path of the file with the trajectory.")
    if is_notes_file(file):
        raise ValueError(f"{file} is itself a file of notes. Give the path of the file with the trajectory.")
    # With the permissions of the file: who may not read it may not read what is said of it either.
    return file, stat.S_IMODE(state.st_mode) & 0o666 | 0o600


def _steps(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give a dict, {{id or index: values}}.")
    return [_step(key, given, f"{name}[{key!r}]") for key, given in value.items()]


def _step(key: Any, given: Any, name: str) -> dict[str, Any]:
    place = {"id": key} if isinstance(key, str) else {"index": user_values.position(key, f"the index in {name}")}
    values = user_values.to_builtin(given)
    if not isinstance(values, dict):
        raise TypeError(f"{name} is {brief(given)} ({type(given).__name__}); give a dict with any of {_NAMES}.")
    unknown = [one for one in values if one not in _STEP_CHECKS]
    if unknown:
        raise ValueError(f"{name} has {brief(unknown[0])}, which a note of a step cannot hold; it can hold {_NAMES}.")
    found: dict[str, Any] = {
        one: _STEP_CHECKS[one](value, f"{name}[{one!r}]") for one, value in values.items() if value is not None
    }
    if not found:
        raise ValueError(f"{name} gives no value; give any of {_NAMES}.")
    trainer = {one: fragment(found.pop(one)) for one in TRAINER_VALUES if one in found}
    return {**place, **found, **({"trainer": trainer} if trainer else {})}


def _trainable(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give True or False.")
    return value


def _policy_version(value: Any, name: str) -> str | int:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} is {brief(value)} ({type(value).__name__}); give text or a whole number.")
    return int(value)


_NAMES = ", ".join((*STEP_VALUES, *TRAINER_VALUES))
_CHECKS = {
    "reward": user_values.finite_number,
    "rewards": lambda value, _: user_values.named_numbers(value, Rewards),
    "metrics": lambda value, _: user_values.named_numbers(value, Metrics),
    "metadata": user_values.metadata,
    "steps": _steps,
}
_STEP_CHECKS = {
    "reward": user_values.finite_number,
    "advantage": user_values.advantage,
    "trainable": _trainable,
    "policy_version": _policy_version,
    "metadata": user_values.metadata,
    **TRAINER_CHECKS,
}
VALUES = tuple(_CHECKS)
"""What a note can give of a trajectory."""


# The episodes of an output: which attempts it holds, and what is noted of those thrown away


class _AttemptHead(TrajectoryHead):
    name: str = "agent"
    episode_id: str | None = None
    status: str = "completed"
    metadata: dict[str, Any] | None = None


_FORMAT = LineFormat(SCHEMA, _AttemptHead)


def attempts_in(output: PathLike, *, since: int = 0) -> Attempts:
    """The attempts at rollouts of an output; of each line only the head is decoded.

    Args:
        since: of a file, the size that it had: lines before that are not looked at.

    Raises:
        OSError: it cannot be read.
    """
    found = Attempts()
    for file in _files(output):
        start = None if not since else Place(begin=since) if is_plain(file) else Place(member=since)
        for _, head in heads(file, _ignore, _FORMAT, start):
            found.add(head)
    return found


def of_episodes(output: PathLike, wanted: Collection[str]) -> Iterator[tuple[str, Trajectory]]:
    """Yields the trajectories of episodes, with their notes, each with its file. The other lines are not decoded.

    Raises:
        OSError: the output cannot be read.
    """
    for file in _files(output):
        notes = load_notes(file, _ignore)
        for line, head in heads(file, _ignore, _FORMAT):
            if episode_of(head) not in wanted:
                continue
            try:
                trajectory = at_any_depth(decode, line)
            except BadLine:
                continue
            if notes is not None:
                notes.apply(trajectory)
            yield file, trajectory


def leave_out(output: PathLike, episodes: Collection[str], *, note: str | None = None) -> None:
    """Notes that no step of these episodes may be trained on, whichever process wrote it; ``note`` says why.

    Steps that are ``superseded``, or not to be trained on already, need no note. Nothing is noted at an address, whose
    objects cannot be added to.

    Raises:
        WriteError, OSError: the notes cannot be written.
    """
    if is_address(output) or not episodes:
        return
    notes: dict[str, list[dict[str, Any]]] = {}
    for file, one in of_episodes(output, episodes):
        if note is not None or any(map(may_be_trained, one.steps)):
            notes.setdefault(file, []).append(leave_out_note(one, note))
    for file, found in notes.items():
        append_notes(file, found)


def leave_out_note(trajectory: Trajectory, why: str | None) -> dict[str, Any]:
    """Returns the note that no step of a trajectory may be trained on; ``why`` is a key in ``rt.collect``'s notes.

    Raises:
        ValueError: without ``why``, it has no such step.
    """
    steps = {step.index: {"trainable": False} for step in trajectory.steps if may_be_trained(step)}
    metadata = None if why is None else {FIELD: {**noted(trajectory), why: True}}
    return checked_note(trajectory.id, {"steps": steps, "metadata": metadata})


def _files(output: PathLike) -> list[str]:
    try:
        return expand_paths(output)
    except FileNotFoundError:
        return []


def _ignore(problem: object) -> None:
    """Leaves what cannot be read where it is; who reads all of the output says so."""
