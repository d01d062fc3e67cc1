"""Conversations for fine-tuning: ``messages`` and ``tools``, as OpenAI's chat format has them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from rollout_trace.export._conversations import Chain, conversations
from rollout_trace.export._exporter import Exporter, RowIterator, owned
from rollout_trace.export._rows import count_unused, count_without_row, task_id, with_steps
from rollout_trace.export._values import finite_counted, number, numbers
from rollout_trace.train.selection import check_allow
from rollout_trace.wire.chat_messages import with_decoded_arguments, with_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.export._conversations import Include
    from rollout_trace.export._exporter import Row, Trajectories
    from rollout_trace.report import ExportReport, Strict
    from rollout_trace.wire.chat_messages import Arguments, Message

    Column: TypeAlias = tuple[str, Callable[[Trajectory, Chain], Any]]


class ChatOptions(TypedDict, total=False):
    """The options of ``chat``."""

    per: Literal["conversation", "step"]
    """One row per ``conversation`` (the default), or per ``step``, with the messages exactly as they were sent."""
    arguments: Arguments
    """Form of tool call arguments: ``dict`` (the default), for TRL's and verl's templates, or ``json``, the text that
    the model wrote, for OpenAI, Together and Fireworks. Text that is not a JSON object stays text and is counted."""
    content: Literal["text", "parts"]
    """Form of messages whose parts are all text: one ``text`` (the default), joined by newlines as engines do for
    templates that expect strings; or ``parts``, for templates that expect parts. Images and other media stay parts."""
    reasoning: str | None
    """Key of the model's reasoning in messages. Most chat templates read ``reasoning_content`` (the default), some
    ``thinking``. None leaves the reasoning out."""
    weight: bool
    """Give every assistant message a ``weight``: 1 for an answer to train on, 0 for an answer that is also in an
    earlier row or is not the answer of a recorded step."""
    columns: Collection[str]
    """The ``CHAT_COLUMNS`` to add; by default the first four. Pass ``()`` for services that reject other columns."""
    include: Include | None
    """A function that returns True for the steps to keep; the others are left out as ``excluded``."""
    allow: Collection[str]
    """Reasons that do not exclude a step, such as ``{"abandoned", "not_trainable"}``."""


CHAT_COLUMNS: dict[str, Column] = {
    "trajectory_id": ("string", lambda run, _: run.id),
    "group_id": ("string", lambda run, _: run.group_id),
    "task_id": ("string", lambda run, _: task_id(run)),
    "reward": ("float64", lambda run, _: number(run.reward)),
    "task": ("json", lambda run, _: getattr(run.task, "data", None)),
    "rewards": ("json", lambda run, _: numbers(run.rewards)),
    "metrics": ("json", lambda run, _: numbers(run.metrics)),
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
"""Additional columns beside ``messages`` and ``tools``: type (see ``rollout_trace.export.arrow``) and value.
``step_ids`` are the steps whose answers are in the row; ``model`` and ``finish_reason`` are those of the last one."""
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
_CHOICES = {"per": ("conversation", "step"), "arguments": ("dict", "json"), "content": ("text", "parts")}
_TRAINED_ON = frozenset({"messages", "tools", "reward"})
"""Columns that a consumer trains on; losses in the others count as metadata."""
_REASONING = ("reasoning_content", "reasoning")
"""Keys under which servers put the model's reasoning."""


@Exporter
def chat(
    trajectories: Trajectories,
    *,
    strict: Strict = False,
    report: ExportReport | None = None,
    **options: Unpack[ChatOptions],
) -> RowIterator:
    """Exports rows ``{"messages": [...], "tools": [...], ...}`` for supervised fine-tuning; ``tools`` is None without
    tools (with ``columns=()``, for services, the key is absent).

    A row is a conversation: calls whose messages extend each other, up to the last answer. An agent that forks, samples
    several choices or rewrites its history has one row for each last answer. Messages are in OpenAI's chat format,
    whatever the protocol was. The report counts what is left out: steps that are not ``ok``, not trainable, or have no
    messages or answer; parts of messages that chat has no place for; numbers that are not finite (exported as None);
    rewards and advantages of steps.
    """
    settings = _settings_of(options)
    columns = {"messages": "json", "tools": "json", **{name: CHAT_COLUMNS[name][0] for name in settings["columns"]}}
    return RowIterator(
        "chat", strict, report, lambda counts, raw: owned(_rows(trajectories, settings, counts), raw), columns,
        # Services refuse null in the place of a list.
        fills=bool(settings["columns"]),
        checked=True,
    )  # fmt: skip


def _settings_of(options: ChatOptions) -> ChatOptions:
    """The options, checked, with the defaults."""
    settings: ChatOptions = {**_DEFAULTS, **options}
    unknown = [name for name in settings if name not in _DEFAULTS]
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; there are {', '.join(_DEFAULTS)}.")
    for name, choices in _CHOICES.items():
        if settings.get(name) not in choices:
            raise ValueError(f"{name}={settings.get(name)!r}: expected {' or '.join(map(repr, choices))}.")
    check_allow(settings["allow"])
    for name in settings["columns"]:
        if name not in CHAT_COLUMNS:
            raise ValueError(f"columns: there is no column {name!r}; there are {', '.join(CHAT_COLUMNS)}.")
    return settings


def _rows(trajectories: Trajectories, settings: ChatOptions, report: ExportReport) -> Iterator[Row]:
    join = settings["per"] == "conversation"
    for trajectory in with_steps(trajectories, report):
        where = f"trajectory {trajectory.id}"
        chains = conversations(trajectory, report, include=settings["include"], allow=settings["allow"], join=join)
        ids = (step.id for chain in chains for step in chain.steps)
        count_unused(trajectory, ids, report, "policy versions", "rewards by name")
        if not chains:
            count_without_row(trajectory, report)
        for chain in chains:
            row: Row = {"messages": _rendered(chain, settings, report)}
            if chain.tools or settings["columns"]:
                # Every row has every key: readers take a table's columns from the first. Services refuse the null.
                row["tools"] = chain.tools or None
            row |= {name: CHAT_COLUMNS[name][1](trajectory, chain) for name in settings["columns"]}
            yield {
                name: finite_counted(value, report, f"values of {name}", where, metadata=name not in _TRAINED_ON)
                for name, value in row.items()
            }


def _rendered(chain: Chain, settings: ChatOptions, report: ExportReport) -> list[Message]:
    """The messages of a conversation for a row, with arguments, contents, reasoning and weights by the settings."""
    trained = set(chain.answers[chain.shared :])
    messages = []
    for at, message in enumerate(chain.messages):
        if settings["arguments"] == "dict":
            message = with_decoded_arguments(message, report)
        if settings["content"] == "text":
            message = with_text(message)
        message = _with_reasoning(message, settings["reasoning"])
        if settings["weight"] and message.get("role") == "assistant":
            # `_with_reasoning` made a copy: the recorded message gets no weight.
            message["weight"] = int(at in trained)
        messages.append(message)
    return messages


def _with_reasoning(message: Message, name: str | None) -> Message:
    """A copy of the message with its reasoning under this key; without it where ``name`` is None."""
    kept = {key: value for key, value in message.items() if key not in _REASONING}
    thought = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if name is not None and thought is not None:
        kept[name] = thought
    return kept
