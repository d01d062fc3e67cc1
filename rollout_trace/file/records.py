"""The types of one line of a file. The reader decodes into them, and the JSON Schema is generated from them:
``python -m rollout_trace.file.records`` writes its files.

Rules for changes are in docs/file-format.md. Types that are the same in the file and in memory (``Usage``,
``Completion``, ...) are those of ``rollout_trace.data.model``.
"""

from __future__ import annotations

import inspect
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct, field

from rollout_trace.data.exact_turn import ExactTurn
from rollout_trace.data.extras import ExtraIssue, PolicySpan
from rollout_trace.data.model import Completion, ErrorInfo, Task, TokenIssue, Usage
from rollout_trace.data.trajectory import ForkedFrom

SCHEMA = "rollout-trace/1"
NOTE_SCHEMA = "rollout-trace-note/1"
LINE_START = b'{"schema":"%s",' % SCHEMA.encode()
"""How this library writes the beginning of a line; one that refers to media goes on with ``media``."""

SchemaId: TypeAlias = Annotated[str, Meta(extra_json_schema={"const": SCHEMA})]
NoteSchemaId: TypeAlias = Annotated[str, Meta(extra_json_schema={"const": NOTE_SCHEMA})]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Index: TypeAlias = Annotated[int, Meta(ge=0)]
# Not a tuple, and without bounds on the numbers: msgspec 0.22 crashes on a bounded int beside a tuple.
Run: TypeAlias = Annotated[list[int], Meta(min_length=2, max_length=2)]
Rows: TypeAlias = list[int | Run]
ArrayRun: TypeAlias = Annotated[list[int], Meta(min_length=3, max_length=3)]
Pair: TypeAlias = Annotated[list[str], Meta(min_length=2, max_length=2)]
Time: TypeAlias = Annotated[datetime, Meta(tz=True)]
Number: TypeAlias = int | float


class Record(Struct, kw_only=True, gc=False):
    """A part of a line. Unknown fields are ignored."""


class SegmentRecord(Record):
    """Token ids stored once: those of `from` (a segment, and how many of its ids), then its own."""

    ids: list[TokenId]
    base: tuple[int, int] | None = field(default=None, name="from")


class ArrayRecord(Record):
    """Base64 of the elements: C order, little-endian."""

    dtype: str
    shape: list[Index]
    data: bytes


class TopRunsRecord(Record):
    """Alternatives at each position of a prompt, as runs of rows of `arrays`: [array, first, end]."""

    ids: list[ArrayRun]
    logprobs: list[ArrayRun]


class TopRecord(Record):
    """Alternatives at each position of a completion: int32 and float32 [positions, k]."""

    ids: ArrayRecord
    logprobs: ArrayRecord


class MaskRecord(Record):
    """The ids that could be sampled: those of all positions one after the other, and how many each position has."""

    ids: ArrayRecord
    counts: ArrayRecord
    logprobs: ArrayRecord | None = None


class TrainerRecord(Record, omit_defaults=True):
    """Numbers of a trainer, float32, one for each of the first tokens of the completion; NaN: not computed."""

    trainer_logprobs: ArrayRecord | None = None
    entropy: ArrayRecord | None = None
    reference_logprobs: ArrayRecord | None = None
    loss_weights: ArrayRecord | None = None


class TokensRecord(Record, omit_defaults=True):
    """Ids [0, prompt) of a segment are the step's prompt, [prompt, end) its completion.

    `routed_experts` and `prompt_logprobs` are runs of rows of `arrays`: [array, first, end]. `texts` are those of the
    completion tokens with U+007F between them, or a list where one of them contains it.
    """

    segment: Index | None = None
    prompt: Index | None = None
    end: Index | None = None
    logprobs: list[float | None] | None = None
    # Not decoded: as objects it takes ten times the memory, and few read it.
    top_logprobs: Annotated[Raw, Meta(extra_json_schema={"type": ["array", "null"]})] = field(default_factory=Raw)
    texts: str | list[str] | None = None
    routed_experts: list[ArrayRun] | None = None
    prompt_logprobs: list[ArrayRun] | None = None
    prompt_top_tokens: TopRunsRecord | None = None
    top_tokens: TopRecord | None = None
    sampling_mask: MaskRecord | None = None
    policy_spans: list[PolicySpan] | None = None

    @property
    def sampled(self) -> int | None:
        """Number of completion ids; None where they are not known."""
        return None if self.end is None else self.end - (self.prompt or 0)


class BodyRecord(Record):
    """Bytes: as text where they are UTF-8, else in base64."""

    text: str | None = None
    base64: str | None = None


class CostRecord(Record):
    """The cost of a call."""

    amount: float | None = None
    currency: str = "USD"
    source: str = "unknown"


class AttemptRecord(Record, omit_defaults=True):
    """One HTTP exchange of a call."""

    started_at: Time | None = None
    duration_ms: float | None = None
    status: int | None = None
    error: ErrorInfo | None = None
    request_id: str | None = None
    content_type: str | None = None


class StepRecord(Record, omit_defaults=True):
    """One sampled completion. `messages` and `tools` are indices of the tables, or runs of them as [first, end]."""

    id: str
    call_id: str | None = None
    choice: int = 0
    index: int | None = None
    agent: str | None = None
    protocol: str | None = None
    engine: str | None = None
    model: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    messages: Rows | None = None
    tools: Rows | None = None
    sampling: dict[str, Any] | None = None
    completion: Completion | None = None
    tokens: TokensRecord | None = None
    token_source: str | None = None
    logprobs_mode: str | None = None
    token_issue: TokenIssue | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    cost: CostRecord | None = None
    started_at: Time | None = None
    latency_ms: float | None = None
    time_to_first_token_ms: float | None = None
    attempts: list[AttemptRecord] = []
    status: str = "ok"
    error: ErrorInfo | None = None
    reward: Number | None = None
    advantage: Number | list[Number | None] | None = None
    trainable: bool = True
    policy_version: str | int | None = None
    metadata: dict[str, Any] | None = None
    request_bytes: BodyRecord | None = None
    response_bytes: BodyRecord | None = None
    extra: dict[str, Any] | None = None
    extra_issues: list[ExtraIssue] = []
    exact_turn: ExactTurn | None = None
    trainer: TrainerRecord | None = None


FACTS = {
    **{name: name for name in ("agent", "engine", "model", "response_model", "response_id", "sampling", "stop_reason")},
    **{name: name for name in ("usage", "cost", "attempts", "error", "extra", "extra_issues", "choice", "exact_turn")},
    "time_to_first_token_ms": "time_to_first_token",
}
"""What a step has beside messages, answer and tokens: names in its record, and those of the step's fields."""


class ToolRunRecord(Record):
    """One execution of a tool."""

    tool_call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    result: Any = None
    error: ErrorInfo | None = None
    started_at: Time | None = None
    duration_ms: float | None = None
    step_id: str | None = None


Mark: TypeAlias = Annotated[
    str,
    Meta(
        pattern="^rollout-trace-media[0-9]*$",
        description="Begins every reference of the line, `<mark>(sha256=<hex>;bytes=<length>;as=url;type=<MIME>)`: "
        "`as=url` in the place of a data: URL, `as=base64` in the place of bare base64, where `type` may be missing. "
        "The data is a file named by its sha256 in the folder `<name of this file>.media`.",
    ),
]


class MediaRecord(Record):
    """How texts of the line refer to media (images, audio, files) in the folder beside the file."""

    mark: Mark


class RequestRecord(BodyRecord):
    """Bytes of a request: those of `from` (an exchange, bytes of the beginning and of the end of its request) around
    its own.
    """

    base: Annotated[list[int], Meta(min_length=3, max_length=3)] | None = field(default=None, name="from")


class ExchangeRecord(Record):
    """One HTTP request and its answer, byte for byte."""

    name: str
    method: str
    path: str
    request: RequestRecord
    response: BodyRecord
    chunk_sizes: list[Index]
    chunk_times_ms: list[float] = []
    protocol: str | None = None
    call_id: str | None = None
    started_at: Time | None = None
    duration_ms: float | None = None
    request_content_type: str | None = None
    status: int | None = None
    headers: list[Pair] = []
    outcome: str = "complete"


class TrajectoryRecord(Record, omit_defaults=True):
    """One line: one agent's run of one task."""

    schema: SchemaId
    id: str
    media: MediaRecord | None = None
    name: str = "agent"
    episode_id: str | None = None
    parent_id: str | None = None
    parent_step_id: str | None = None
    group_id: str | None = None
    rollout_index: int | None = None
    task: Task | None = None
    status: str = "completed"
    stop_reason: str | None = None
    error: ErrorInfo | None = None
    reward: Number | None = None
    rewards: dict[str, Number | None] | None = None
    metrics: dict[str, Number | None] | None = None
    started_at: Time | None = None
    ended_at: Time | None = None
    environment: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    forked_from: ForkedFrom | None = None
    messages: list[Any] = []
    tools: list[Any] = []
    segments: list[SegmentRecord] = []
    steps: list[StepRecord] = []
    tool_runs: list[ToolRunRecord] = []
    exchanges: list[ExchangeRecord] = []
    arrays: list[ArrayRecord] = []


class Head(Record):
    """The fields of a line that are needed before the rest is decoded."""

    schema: str
    media: MediaRecord | None = None


class StepNoteRecord(Record):
    """Values of one step, named by its `id`, or by its `index` within the trajectory."""

    id: str | None = None
    index: Index | None = None
    reward: Number | None = None
    advantage: Number | list[Number] | None = None
    trainable: bool | None = None
    policy_version: str | int | None = None
    metadata: dict[str, Any] | None = None
    trainer: TrainerRecord | None = None


class NoteRecord(Record):
    """One line of a file of notes: what became known of a trajectory after it was written."""

    schema: NoteSchemaId
    id: str
    at: Time | None = None
    reward: Number | None = None
    rewards: dict[str, Number | None] | None = None
    metrics: dict[str, Number | None] | None = None
    metadata: dict[str, Any] | None = None
    steps: list[StepNoteRecord] = []
    scorer: str | None = None
    score_error: ErrorInfo | None = None


# JSON Schema

_FOLDER = Path(__file__).parent.parent / "schema"
PATH = _FOLDER / f"{SCHEMA.replace('/', '-')}.json"
NOTE_PATH = _FOLDER / f"{NOTE_SCHEMA.replace('/', '-')}.json"


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a file."""
    return _schema(SCHEMA, TrajectoryRecord)


def note_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a file of notes."""
    return _schema(NOTE_SCHEMA, NoteRecord)


def _schema(name: str, record: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name.replace('/', ':')}",
        "title": name,
        **_without_field_docs(msgspec.json.schema(record)),
    }


def _without_field_docs(part: Any) -> Any:
    """The schema with the section ``Attributes`` cut from descriptions: a schema lists the fields itself."""
    if isinstance(part, list):
        return [_without_field_docs(item) for item in part]
    if not isinstance(part, dict):
        return part
    result = {name: _without_field_docs(item) for name, item in part.items()}
    if isinstance(result.get("description"), str):
        # From Python 3.13 on, docstrings have no indentation.
        result["description"] = inspect.cleandoc(result["description"]).partition("\n\nAttributes:")[0]
    return result


def text(schema: dict[str, Any]) -> str:
    """The text of the file of a schema."""
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(schema()), encoding="utf-8")
    NOTE_PATH.write_text(text(note_schema()), encoding="utf-8")
