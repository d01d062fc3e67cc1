"""Encodes a trajectory as the bytes of its line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Any, TypeAlias

import orjson

from rollout_trace import credentials
from rollout_trace._threads import give_way, in_slices
from rollout_trace.data.extras import JSONText
from rollout_trace.data.model import STORED, Step
from rollout_trace.data.trainer_tokens import TrainerTokens
from rollout_trace.file.arrays import ROWS, DistinctRows, encoded, fragment
from rollout_trace.file.distinct import DistinctTokens, DistinctValues
from rollout_trace.file.exchanges import encode_exchanges
from rollout_trace.file.extras import check_trainer, extras_of, json_line
from rollout_trace.file.fields import Given, steps_json, tool_run_json, trajectory_json, warn_not_finite
from rollout_trace.file.plain import dumps
from rollout_trace.file.records import SCHEMA

if TYPE_CHECKING:
    from rollout_trace.data.trajectory import Trajectory

_Arrays: TypeAlias = "list[list[Any]]"
_MISROUNDED = float.fromhex("0x1.5c87fa0000000p-84")
"""The one float32, but for its sign, whose shortest decimal text, read as a double and then rounded to float32, gives
its neighbour. Written as a double it is restored exactly."""


def encode(trajectory: Trajectory) -> bytes:
    """The line of a trajectory, its newline included. Keys of this process's clients are cut out of it.

    Raises:
        ValueError: the trajectory is open, a step has more or fewer logprobs than completion ids, or the pieces of an
            exchange do not make its response.
    """
    if trajectory.is_open:
        raise ValueError(
            f"trajectory {trajectory.name!r} ({trajectory.id}) is still open. "
            "Write it after its `with rt.trajectory(...)` block has ended."
        )
    line, arrays = _line(trajectory)
    give_way()
    if credentials.found_in(line):
        # Rare: steps are cut when they are decoded. By fields first, so that no ids stay of a text that changes.
        from rollout_trace.data.redact import redacted

        line, arrays = _line(redacted(trajectory, None))
        line = credentials.cut_bytes(line)
    # Put in behind the search for keys too, which it does by exchange: a size of a body that was cut has to fit.
    exchanges = encode_exchanges(trajectory.exchanges) if trajectory.exchanges else b"[]"
    if exchanges != b"[]":
        line = b'%s,"exchanges":%s}\n' % (line[:-2], exchanges)
    if not any(arrays):
        return line
    # As bytes, behind the search for keys: of hundreds of MB one copy less, and no key is found in numbers.
    parts: list[bytes] = []
    for array in (array for table in arrays for array in table):
        head = dumps({"dtype": array.dtype.name, "shape": array.shape})[:-1]
        parts += (b"," if parts else b',"arrays":[', head, b',"data":"', encoded(array), b'"}')
    return b"".join((line[:-2], *parts, b"]}\n"))


def _line(trajectory: Trajectory) -> tuple[bytes, _Arrays]:
    """The line of a trajectory without exchanges and arrays, and the arrays that it refers to."""
    tables, arrays = _tables(trajectory.steps)
    give_way()
    parts = [trajectory_json(trajectory)[:-1]]
    for name, text in tables.items():
        parts += (b',"%s":' % name.encode(), text)
    parts += (b',"tool_runs":[', b",".join(map(tool_run_json, trajectory.tool_runs)), b"]}\n")
    return b"".join(parts), arrays


PARTS = ("messages", "tools", "segments", "steps")
"""The parts of a line that ``in_parts`` returns; of steps with arrays, one for each field of ``ROWS`` is added."""


def _tables(steps: Sequence[Step]) -> tuple[dict[str, bytes], _Arrays]:
    """The JSON of each of ``PARTS``, and the arrays that the steps refer to: for each field of ``ROWS`` those of it."""
    # The steps as they are now: another thread may change the list of a closed trajectory while its line is made.
    steps = list(steps)
    stored = list(map(_stored, steps))
    messages = DistinctValues([one[0] for one in stored])
    tools = DistinctValues([one[1] for one in stored])
    tokens, given = DistinctTokens(), list[Given]()
    rows = DistinctRows(steps) if [1 for one in stored if any(map(is_not, one[_N_TOKENS:], repeat(None)))] else None
    for at, (step, one) in in_slices(enumerate(zip(steps, stored, strict=True))):
        sent, offered = one[:2]
        record = _tokens(step, tokens, one)
        if rows is not None:
            record.update(extras_of(step, at, rows))
        index = None if step.index == at else step.index
        sent_rows = None if sent is None else messages.add(sent)
        given.append((index, sent_rows, None if offered is None else tools.add(offered), record))
    _prepare_logprobs(steps, [one[3] for one in given])
    give_way()
    data = steps_json(steps, given)
    found = dict(zip(PARTS, (messages.table(), tools.table(), dumps(tokens.table()), data), strict=True))
    return found, [] if rows is None else list(map(rows.table, ROWS))


def _stored(step: Step) -> tuple[Any, ...]:
    """Returns the stored forms (as ``shared``) of the fields that the tables of a line hold, then the extras."""
    if not isinstance(step, Step):
        raise TypeError(f"expected Step, got {step!r}. Make one with rollout_trace.Step(...).")
    return _stored_of(step)


_TOKENS = ("messages", "tools", "prompt_token_ids", "completion_token_ids", "logprobs", "top_logprobs", "token_texts")
_SHARED_EXTRAS = ("prompt_logprobs", "prompt_top_tokens", "routed_experts")
_stored_of = attrgetter(
    *(STORED + name for name in (*_TOKENS, *_SHARED_EXTRAS)), "top_tokens", "sampling_mask", "policy_spans"
)
_N_TOKENS = len(_TOKENS)


def in_parts(steps: list[Step]) -> list[bytes]:
    """The tables and the steps of a line, each as JSON: the beginning of each repeats that of the steps before.

    Together the added parts are the table of arrays. Each grows at one place: a field for itself, its shape at the end.
    """
    tables, arrays = _tables(steps)
    parts = list(tables.values())
    for table in arrays if any(arrays) else ():
        parts.append(dumps([{key: one[key] for key in ("dtype", "data", "shape")} for one in map(fragment, table)]))
    return parts


def from_parts(parts: list[bytes]) -> bytes:
    """The line, without an id, of what ``in_parts`` returned. Raises ValueError: another number of parts."""
    if len(parts) not in (len(PARTS), len(PARTS) + len(ROWS)):
        raise ValueError(f"expected {len(PARTS)} or {len(PARTS) + len(ROWS)} parts, got {len(parts)}")
    members = [b'"%s":%s' % (name.encode(), text) for name, text in zip(PARTS, parts, strict=False)]
    arrays = b",".join(text[1:-1] for text in parts[len(PARTS) :] if text != b"[]")
    return b'{"schema":"%s","id":"",%s,"arrays":[%s]}' % (SCHEMA.encode(), b",".join(members), arrays)


def _tokens(step: Step, tokens: DistinctTokens, stored: tuple[Any, ...]) -> dict[str, Any]:
    """The ``tokens`` of a step without its extras. ``stored``: what ``_stored`` returned of it."""
    _, _, prompt, completion, logprobs, top_logprobs, texts = stored[:_N_TOKENS]
    record = tokens.add(step, prompt, completion)
    sampled = record["end"] - record.get("prompt", 0) if "end" in record else None
    if logprobs is not None:
        if sampled is not None and len(logprobs) != sampled:
            raise ValueError(
                f"step {step.id} has {sampled} completion ids and {len(logprobs)} logprobs: give "
                "one logprob for each id, or set what you do not trust to None."
            )
        record["logprobs"], sampled = logprobs, len(logprobs)
    if top_logprobs is not None:
        is_text = isinstance(top_logprobs, JSONText)
        record["top_logprobs"] = orjson.Fragment(json_line(top_logprobs)) if is_text else top_logprobs
    if texts is not None:
        if sampled is not None and len(texts) != sampled:
            raise ValueError(
                f"step {step.id} has {sampled} completion tokens and {len(texts)} token_texts. Give one text for each, "
                "or set what cannot be trusted to None: dataclasses.replace(step, token_texts=None)."
            )
        plain = texts.plain()
        record["texts"] = texts.get() if plain is None else plain
    if isinstance(step.trainer, TrainerTokens):
        check_trainer(step, sampled)
    return record


def _prepare_logprobs(steps: Sequence[Step], records: Sequence[dict[str, Any]]) -> None:
    """Warns of logprobs that are not finite, and makes doubles of those that float32 text would not restore.

    All logprobs of a line are checked in one array, which is faster than a check for each step.
    """
    found = [tokens["logprobs"] for tokens in records if "logprobs" in tokens]
    if not found:
        return
    import numpy as np

    values = found[0] if len(found) == 1 else np.concatenate(found)
    if np.count_nonzero(np.isfinite(values)) != len(values):
        # Of a step with this issue they are missing: NaN in memory, and null in files.
        issues = [None if step.token_issue is None else step.token_issue.code for step in steps]
        known = [tokens["logprobs"] for tokens, issue in zip(records, issues, strict=True)
                 if "logprobs" in tokens and issue != "logprobs_incomplete"]  # fmt: skip
        if not all(np.isfinite(one).all() for one in known):
            warn_not_finite("a logprob", float(np.add.reduce(values, dtype=np.float64)))
    if np.count_nonzero(np.abs(values) == _MISROUNDED):
        for tokens in records:
            if "logprobs" in tokens:
                tokens["logprobs"] = tokens["logprobs"].astype(np.float64)
