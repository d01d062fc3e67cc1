"""Conversations for fine-tuning: ``messages`` and ``tools``, as OpenAI's chat format has them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from rollout_trace.chat.messages import with_decoded_arguments, with_text
from rollout_trace.export._arrow import Rows
from rollout_trace.export._common import exporting, one_by_one, say_without_row, with_steps
from rollout_trace.export._conversations import Chain, conversations
from rollout_trace.export._files import write_rows
from rollout_trace.export._rows import say_unused, task_id
from rollout_trace.export._values import copied, counted, number
from rollout_trace.train.selection import check_allow

if TYPE_CHECKING:
    import os

    from typing_extensions import Unpack

    from rollout_trace.chat.messages import Arguments, Message
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._conversations import Include
    from rollout_trace.report import ExportReport, Strict

    Trajectories: TypeAlias = Trajectory | Iterable[Trajectory]
    Column: TypeAlias = tuple[str, Callable[[Trajectory, Chain], Any]]


class ChatOptions(TypedDict, total=False):
    """The options of ``chat`` and ``write_chat``."""

    per: Literal["conversation", "step"]
    """A row for each conversation (the default), or for each step, with the messages exactly as they were sent."""
    arguments: Arguments
    """Of tool calls: ``dict`` (the default), which TRL's and verl's templates take, or ``json`` for the text that the
    model wrote, which OpenAI, Together and Fireworks take. What is no JSON object stays text, and is counted."""
    content: Literal["text", "parts"]
    """Of messages whose parts are all text: one ``text`` (the default), joined with newlines as engines render them
    for templates that take texts; or the ``parts``, for templates that take those. Images and the like stay parts."""
    reasoning: str | None
    """The name under which messages have what the model thought: ``reasoning_content`` (the default) is what most chat
    templates read, some read ``thinking``. None leaves it out."""
    weight: bool
    """Gives every assistant message a ``weight``: 1 for an answer to train on, 0 for one that an earlier row trains on
    too, or that no recorded step gave in this place."""
    columns: Collection[str]
    """Which of ``CHAT_COLUMNS`` to add; by default the first four. None of them where a service refuses others."""
    include: Include | None
    """Which steps to take."""
    allow: Collection[str]
    """Reasons for leaving steps out that do not count, such as ``{"abandoned", "not_trainable"}``."""


CHAT_COLUMNS: dict[str, Column] = {
    "trajectory_id": ("string", lambda run, _: run.id),
    "group_id": ("string", lambda run, _: run.group_id),
    "task_id": ("string", lambda run, _: task_id(run)),
    "reward": ("float64", lambda run, _: number(run.reward)),
    "task": ("json", lambda run, _: getattr(run.task, "data", None)),
    "rewards": ("json", lambda run, _: run.rewards),
    "metrics": ("json", lambda run, _: run.metrics),
    "metadata": ("json", lambda run, _: run.metadata),
    "episode_id": ("string", lambda run, _: run.episode_id),
    "parent_id": ("string", lambda run, _: run.parent_id),
    "rollout_index": ("int64", lambda run, _: run.rollout_index),
    "agent": ("string", lambda run, _: run.name),
    "status": ("string", lambda run, _: run.status),
    "step_ids": ("list<string>", lambda _, chain: [step.id for step in chain.steps]),
    "model": ("string", lambda _, chain: chain.steps[-1].model),
    "finish_reason": ("string", lambda _, chain: chain.steps[-1].finish_reason),
}
"""Columns beside ``messages`` and ``tools``: type (see ``rollout_trace.export.arrow``), and value. ``step_ids`` are the
steps whose answers are in the row, ``model`` and ``finish_reason`` those of the last."""

_DEFAULTS: ChatOptions = {
    "per": "conversation",
    "arguments": "dict",
    "content": "text",
    "reasoning": "reasoning_content",
    "weight": False,
    "columns": tuple(CHAT_COLUMNS)[:4],
    "include": None,
    "allow": (),
}
_WORDS = {"per": ("conversation", "step"), "arguments": ("dict", "json"), "content": ("text", "parts")}
_TAUGHT = frozenset({"messages", "tools", "reward"})
"""Columns that a consumer learns from; the others stand beside them."""
_REASONING = ("reasoning_content", "reasoning")
"""Where servers have what a model thought."""


def chat(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[ChatOptions],
) -> Rows:
    """Rows ``{"messages": [...], "tools": [...], ...}`` for supervised fine-tuning; without tools there is no such key.

    A row is a conversation: calls whose messages extend each other, up to the last answer. An agent that forks, samples
    several choices or rewrites its history has one for each end. Messages are in the shape of OpenAI's chat format,
    whatever the protocol was. What cannot be in a row is counted: steps that are not ``ok``, not trainable, without
    messages or answer; parts of messages that chat has no place for; numbers that are not finite (they are None);
    rewards and advantages of steps.

    Raises:
        ExportError: ``strict``, and something would be left out.
        TypeError: there is no such option, or ``allow`` is a text.
        ValueError: an option has no such value.
    """
    settings = _settings(options)
    with exporting("chat", strict, report) as found:
        return Rows(map(copied, _rows(trajectories, settings, found)), _types(settings))


def iter_chat(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[ChatOptions],
) -> Iterator[dict[str, Any]]:
    """The rows of ``chat``, each made when it is asked for."""
    settings = _settings(options)
    return one_by_one("iter_chat", strict, report, lambda found: map(copied, _rows(trajectories, settings, found)))


def write_chat(
    path: str | os.PathLike[str],
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[ChatOptions],
) -> int:
    """Writes the rows of ``chat`` to ``.jsonl``, ``.jsonl.gz``, ``.jsonl.zst`` or ``.parquet``; gives their number.

    In parquet, ``messages`` and ``tools`` have Arrow's JSON type: ``datasets`` gives lists of dicts, others see text.

    Raises:
        ExportError: ``strict``, and something would be left out.
        ImportError, OSError: as ``write_jsonl`` and ``write_parquet``.
        ValueError: an option has no such value, or the name has another suffix.
    """
    settings = _settings(options)
    with exporting("write_chat", strict, report) as found:
        return write_rows(path, _rows(trajectories, settings, found), _types(settings))


def _settings(options: ChatOptions) -> ChatOptions:
    settings: ChatOptions = {**_DEFAULTS, **options}
    unknown = [name for name in settings if name not in _DEFAULTS]
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; there are {', '.join(_DEFAULTS)}.")
    for name, words in _WORDS.items():
        if settings.get(name) not in words:
            raise ValueError(f"{name}={settings.get(name)!r}: expected {' or '.join(map(repr, words))}.")
    check_allow(settings["allow"])
    for name in settings["columns"]:
        if name not in CHAT_COLUMNS:
            raise ValueError(f"columns: there is no column {name!r}; there are {', '.join(CHAT_COLUMNS)}.")
    return settings


def _types(settings: ChatOptions) -> dict[str, str]:
    return {"messages": "json", "tools": "json", **{name: CHAT_COLUMNS[name][0] for name in settings["columns"]}}


def _rows(trajectories: Trajectories, settings: ChatOptions, report: ExportReport) -> Iterator[dict[str, Any]]:
    join = settings["per"] == "conversation"
    for trajectory in with_steps(trajectories, report):
        where = f"trajectory {trajectory.id}"
        chains = conversations(trajectory, report, include=settings["include"], allow=settings["allow"], join=join)
        taken = (step.id for chain in chains for step in chain.steps)
        say_unused(trajectory, taken, report, versions=False, named=False)
        if not chains:
            say_without_row(trajectory, report)
        for chain in chains:
            row: dict[str, Any] = {"messages": rendered(chain, settings, report)}
            if chain.tools:
                row["tools"] = chain.tools
            row |= {name: CHAT_COLUMNS[name][1](trajectory, chain) for name in settings["columns"]}
            yield {
                name: counted(value, report, f"values of {name}", where, metadata=name not in _TAUGHT)
                for name, value in row.items()
            }


def rendered(chain: Chain, settings: ChatOptions, report: ExportReport) -> list[Message]:
    """The messages of a conversation as a row has them: arguments, reasoning and weights as the settings say."""
    trained = set(chain.answers[chain.shared :])
    messages = []
    for at, message in enumerate(chain.messages):
        if settings["arguments"] == "dict":
            message = with_decoded_arguments(message, report)
        if settings["content"] == "text":
            message = with_text(message)
        message = _with_reasoning(message, settings["reasoning"])
        if settings["weight"] and message.get("role") == "assistant":
            message["weight"] = int(at in trained)
        messages.append(message)
    return messages


def _with_reasoning(message: Message, name: str | None) -> Message:
    """A copy of the message that has its reasoning under this name, or has none."""
    kept = {key: value for key, value in message.items() if key not in _REASONING}
    thought = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if name is not None and thought is not None:
        kept[name] = thought
    return kept
