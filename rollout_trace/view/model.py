"""Plain values, ready for JSON, that terminal, page and notebook show of a trajectory.

Times are Unix times in seconds, durations seconds, logprobs natural logarithms. None: not known. Texts are those that
were recorded, unescaped: whoever shows them escapes them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

Grade: TypeAlias = Literal["fatal", "warning", "info"]
PartKind: TypeAlias = Literal["text", "reasoning", "refusal", "tool_call", "image", "audio", "file", "json"]


class Shown(Struct, kw_only=True, omit_defaults=True):
    """A part of what is shown. Fields with their default are left out of JSON."""


class Part(Shown):
    """A piece of a message."""

    kind: PartKind
    text: str = ""
    """The text; of a tool call the raw argument string; of media their URL (``data:`` or another one, which nobody
    loads) or their reference; of ``json`` the JSON of a part that has no kind of its own."""
    name: str | None = None
    """Of a tool call: the tool. Of media: their MIME type or their file's name."""
    id: str | None = None
    """Of a tool call."""


class Message(Shown):
    """A message of a request, or an answer."""

    role: str
    parts: list[Part]
    name: str | None = None
    tool_call_id: str | None = None
    """Of a message of the role ``tool``: the call that it answers."""


class Alternative(Struct, array_like=True):
    """A token that could have been sampled."""

    text: str | None
    id: int | None
    logprob: float | None


class Tokens(Shown):
    """The tokens of one completion, in columns of one length."""

    n: int
    ids: list[int] | None = None
    texts: list[str] | None = None
    """Joined they are the text. A character that several tokens make is in the last of them, the others are empty."""
    logprobs: list[float | None] | None = None
    entropy: list[float | None] | None = None
    """Nats, of the recorded alternatives, with what they leave of the probability as one more: a lower bound."""
    alternatives: list[list[Alternative]] | None = None
    log_ratios: list[float | None] | None = None
    """Nats: the trainer's logprob of each token minus the engine's. The logarithm of the importance ratio."""


class RatioBin(Struct, array_like=True):
    """A stretch of the sampled tokens of a trajectory that have logprobs of both sides."""

    step: int
    """Index of the step in which it begins."""
    token: int
    """Position in that step's completion."""
    mean: float
    """Nats, of the log ratios of its tokens; as low and high."""
    low: float
    high: float


class FindingView(Shown):
    """A finding of ``trajectory.check()``."""

    code: str
    grade: Grade
    message: str
    step: int | None = None
    """Index of the step; None for one on the whole trajectory."""
    position: int | None = None


class DriftView(Shown):
    """A prompt that repeats an earlier completion in text, not in ids."""

    step: int
    previous: int
    """Indices of the steps: the one whose prompt drifted, and the one that it should have begun with."""
    position: int
    """In the prompt."""
    kind: str
    expected: list[int]
    found: list[int]
    expected_text: str | None = None
    found_text: str | None = None
    meaning: str = ""


class ToolRunView(Shown):
    """One execution of a tool."""

    name: str | None = None
    tool_call_id: str | None = None
    step: int | None = None
    """Index of the step that asked for it."""
    arguments: str | None = None
    result: str | None = None
    """Texts as they are, other values as JSON."""
    error: str | None = None
    started: float | None = None
    """Unix time."""
    duration: float | None = None


class AttemptView(Shown):
    """One HTTP exchange of a call."""

    started: float | None = None
    duration: float | None = None
    status: int | None = None
    error: str | None = None


class StepLine(Shown):
    """A step, in short: what an outline of thousands of steps has of each."""

    index: int
    id: str
    call_id: str
    agent: str | None = None
    model: str | None = None
    status: str = "ok"
    finish: str | None = None
    thread: int = 0
    """Which conversation of the trajectory the step is in; 0 is the first. A step whose request continues no earlier
    step begins a new one."""
    continues: int | None = None
    """Index of the step whose messages and answer its request repeats at its beginning; None: it begins anew."""
    started: float | None = None
    latency: float | None = None
    first_token: float | None = None
    n_prompt: int | None = None
    n_completion: int | None = None
    mean_logprob: float | None = None
    """Of the completion."""
    row: int | None = None
    """Index of the training row that has the completion; None: left out."""
    begin: int | None = None
    """Position of the completion's first token in the row."""
    left_out: str | None = None
    """Why no row has the completion: a reason of ``sequences().report.left_out``."""
    reward: float | None = None
    grade: Grade | None = None
    """The worst grade of the step's findings."""
    drift: str | None = None
    """The kind of the drift of its prompt."""
    tools: list[str] = []
    """Names of the tools that its completion calls."""
    excerpt: str = ""
    """The beginning of its answer, at most 120 characters."""


class StepView(Shown):
    """A step, whole."""

    line: StepLine
    repeated: int = 0
    """Number of messages of the request that an earlier step's request and answer already showed."""
    shown_by: int | None = None
    """Index of the step that showed them, where it is not one that this step continues. Nothing is new then: it has the
    same prompt."""
    new: list[Message] = []
    """The messages of the request that are new in it."""
    answer: Message | None = None
    tool_runs: list[ToolRunView] = []
    """Runs of the tools that the completion calls."""
    children: list[str] = []
    """Ids of trajectories that were opened after this step, before the next one."""
    findings: list[FindingView] = []
    drift: DriftView | None = None
    tokens: Tokens | None = None
    attempts: list[AttemptView] = []
    error: str | None = None
    token_issue: str | None = None
    exact_turn: str | None = None
    """How its prompt was sent, where exact turns were asked for."""
    token_source: str | None = None
    logprobs_mode: str | None = None
    usage: dict[str, Any] | None = None
    cost: float | None = None
    currency: str | None = None
    sampling: dict[str, Any] | None = None
    policy_version: str | None = None
    advantage: float | None = None
    metadata: dict[str, Any] | None = None
    engine: str | None = None
    protocol: str | None = None
    response_model: str | None = None
    response_id: str | None = None
    stop_reason: str | None = None
    offered: list[str] = []
    """Names of the tools that the request offers."""
    has_bytes: bool = False
    """Whether the raw request and answer are kept."""


class RowPart(Struct, array_like=True):
    """A stretch of a training row with one mask."""

    length: int
    mask: int
    """1: the model sampled the tokens; 0: it read them."""
    step: int | None
    """Index of the step that sampled them; None for mask 0."""


class RowView(Shown):
    """A training row, as ``trajectory.sequences()`` gives it."""

    length: int
    trained: int
    parts: list[RowPart]
    reward: float | None = None
    has_logprobs: bool = True


class Summary(Shown):
    """A trajectory in a line of a list."""

    id: str
    name: str = "agent"
    task: str | None = None
    group: str | None = None
    index: int | None = None
    attempt: int | None = None
    """The attempt of ``rt.collect`` that it is; None where it has none."""
    episode: str | None = None
    parent: str | None = None
    parent_step: str | None = None
    """Id of the parent's latest step when it was opened."""
    forked_from: str | None = None
    """Id of the recorded trajectory that it went on from."""
    fork_step: int | None = None
    """Number of its calls that were answered from the recording."""
    status: str = "completed"
    stop_reason: str | None = None
    error: str | None = None
    reward: float | None = None
    rewards: dict[str, float] | None = None
    metrics: dict[str, float] | None = None
    started: float | None = None
    seconds: float | None = None
    steps: int = 0
    calls: int = 0
    agents: list[str] = []
    models: list[str] = []
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    currency: str | None = None
    latency: float | None = None
    """Sum over its calls."""
    first_token: float | None = None
    """Mean over the calls that have one."""
    tool_runs: int = 0
    tool_errors: int = 0
    rows: int = 0
    tokens: int = 0
    """Of all rows."""
    trained: int = 0
    """Tokens of all rows with mask 1."""
    left_out: dict[str, int] = {}
    """Reason to number of steps that no row has."""
    findings: dict[str, int] = {}
    """Code to number."""
    grade: Grade | None = None
    """The worst grade of its findings."""
    drift: dict[str, int] = {}
    """Kind to number."""
    exact: int = 0
    """Steps whose prompt was sent as ids."""
    as_text: dict[str, int] = {}
    """Reason to number of steps that were to be sent as ids, and went out as text."""
    excerpt: str = ""
    """The beginning of the first message of a user, at most 160 characters."""
    note: str | None = None
    """``metadata["note"]``, a text."""


class Outline(Shown):
    """A trajectory without the contents of its steps."""

    summary: Summary
    steps: list[StepLine]
    tool_runs: list[ToolRunView]
    """All of them, without arguments and results: for the time axis."""
    rows: list[RowView]
    findings: list[FindingView]
    """Those on the whole trajectory, and those on steps."""
    drift: list[DriftView]
    threads: int = 1
    family: list[Summary] = []
    """Trajectories of the same episode, this one included, as far as they are known."""
    task: Any = None
    environment: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    error: str | None = None
    token_texts: str | None = None
    """Where token texts come from: ``engine``, ``tokenizer``, None: there are none."""
    exchanges: int = 0
    """HTTP exchanges that it holds, byte for byte: it is a cassette."""
    exchange_bytes: int = 0
    """Of their requests and answers."""
    ratios: list[RatioBin] = []
    """Of the trainer's probabilities to the engine's, in the order of the tokens; empty where none are known."""
    vocabulary: int | None = None
