"""Sessions of Claude Code: its transcripts, those of sub-agents, and what ``--output-format stream-json`` prints."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.addresses import is_address
from rollout_trace.importing._claude_code_chain import Chain
from rollout_trace.importing._claude_code_requests import KINDS, Requests
from rollout_trace.importing._claude_code_values import Line, is_prompt, queued
from rollout_trace.importing.imported import Imported, Job, session_lines
from rollout_trace.importing.inputs import Input, document, inputs_of

if TYPE_CHECKING:
    from rollout_trace.importing._claude_code_values import Line
    from rollout_trace.importing.fields import Fields, OnError
    from rollout_trace.importing.inputs import Given
    from rollout_trace.importing.report import ImportReport


def claude_code(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """The trajectories of sessions: each session's own, then those of its sub-agents.

    A response is one step, over however many lines it was written; its usage is counted once. Since 2.1.332 sessions
    have each request: messages, system prompt, tools and sampling parameters are those that were sent, and what was
    tried again is an attempt. Of older releases prompts are put together from the messages before an answer, without
    system prompt, tools and sampling parameters. No session has token ids or logprobs. Branches that were left
    (rewound) stay, as steps of other prompts. Lines that a resumed or forked session copied from another one of this
    import are messages there, not steps.

    Args:
        path: session files, or folders such as ``~/.claude/projects``; the files of sub-agents beside a session are
            read with it. Or an open file.
        on_error: ``raise`` at the first value that cannot be read; ``skip``: leave it out, and keep its error in
            ``skipped`` of the iterator. A last line without its end is left out, and counted, in both.
        report: counts what the source did not have, and what was left out.

    Raises:
        FileNotFoundError: there is nothing to read.
        ValueError: ``on_error`` has another value.
        FormatError: while iterating, unless skipped: something is no line of a session.
    """
    job, sessions = Job("claude_code", on_error, report), sessions_of(path)
    seen: set[str] = set()
    return Imported(job, (one for files in sessions for one in _Session(files, job, seen).trajectories()))


class _Session:
    """One session: its own conversation, and those of its sub-agents."""

    def __init__(self, files: SessionFiles, job: Job, seen: set[str]) -> None:
        self._files, self._job, self._seen = files, job, seen
        self._links = _Links()
        self._lines = self._read(files.main)
        self._id = self._lines.session_id or files.main.stem

    def trajectories(self) -> list[Trajectory]:
        """The session's own first; it is left out where the files have sub-agents alone."""
        if not self._lines.chains and not self._files.agents:
            self._job.report.drop("files without a conversation")
            return []
        own = self._lines.chains.pop("", None)
        root = Trajectory(id=self._id, name="claude-code") if own is None else self._trajectory("", own, {})
        root.metadata = {**(root.metadata or {}), **self._lines.facts}
        agents = [(key, chain, _meta(self._files.main, self._job)) for key, chain in self._lines.chains.items()]
        for source in self._files.agents:
            meta = _meta(source, self._job)
            for key, chain in self._read(source).chains.items():
                agents.append((key or source.stem.removeprefix("agent-"), chain, meta))
        made = [root, *(self._trajectory(*agent) for agent in agents)]
        self._links.connect(made)
        return made if own is not None else made[1:]

    def _read(self, source: Input) -> Lines:
        lines = Lines(self._job.report)
        for record in session_lines(source, self._job):
            self._job.attempt(lines.add, record)
        if lines.requests.is_empty:
            what = "attachments (reminders, hooks, files), of which it is not known what the model read"
            self._job.report.drop(what, lines.attachments)
        return lines

    def _trajectory(self, key: str, chain: list[Line], meta: dict[str, Any]) -> Trajectory:
        """The trajectory of a conversation. ``key``: of its agent, empty for the session's own."""
        wanted = f"{self._id}.{key}" if key else self._id
        made, report = Chain(chain, wanted, self._job, self._seen), self._job.report
        report.miss("system prompts, tools and sampling parameters", made.has_rebuilt)
        report.miss("rewards")
        times = [line.time for line in chain if line.time is not None]
        name = meta.get("agentType") or meta.get("name") or chain[0].agent_name
        trajectory = Trajectory(
            id=self._job.unique_id(wanted),
            name=name or ("subagent" if key else "claude-code"),
            steps=made.steps,
            tool_runs=made.tool_runs,
            status=made.status,
            started_at=min(times, default=None),
            ended_at=max(times, default=None),
            environment=_environment(chain, self._lines),
            metadata={"imported": {"source": "claude_code"}, **made.facts, **meta},
        )
        self._links.add(key, trajectory, made, meta)
        return trajectory


def _meta(source: Input, job: Job) -> dict[str, Any]:
    """What the file beside a sub-agent's has: its type, and the tool call that began it."""
    path = source.path.removesuffix(".jsonl") + ".meta.json"
    if source.is_open_file or not os.path.isfile(path):
        return {}
    found = document(Input(path), job.problems)
    if found is None:
        return {}
    names = ("toolUseId", "parentAgentId", "agentType", "description", "name")
    return {name: value for name in names if (value := found.text(name)) is not None}


def _environment(chain: list[Line], lines: Lines) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    for line in chain:
        for name, ours in (("version", "claude_code"), ("cwd", "cwd"), ("gitBranch", "git_branch")):
            value = line.fields.text(name)
            if value is not None:
                found.setdefault(ours, value)
        if len(found) == 3:
            break
    return {**lines.environment, **found} or None


class _Links:
    """Which tool call began which sub-agent: by the file beside it, by the result of the call, or by its prompt."""

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[Trajectory, Chain, dict[str, Any]]] = {}
        self._step_of_call: dict[str, tuple[Trajectory, Chain]] = {}
        self._call_of_agent: dict[str, str] = {}
        self._call_of_prompt: dict[str | None, str] = {}

    def add(self, key: str, trajectory: Trajectory, chain: Chain, meta: dict[str, Any]) -> None:
        """Adds a conversation by its agent's id; empty for the session's own."""
        self._by_key.setdefault(key, (trajectory, chain, meta))
        for call_id in chain.step_of_call:
            self._step_of_call.setdefault(call_id, (trajectory, chain))
        for agent, call_id in chain.call_of_agent.items():
            self._call_of_agent.setdefault(agent, call_id)
        for prompt, call_id in chain.call_of_prompt.items():
            self._call_of_prompt.setdefault(prompt, call_id)

    def connect(self, made: list[Trajectory]) -> None:
        """Sets the parents of the sub-agents; one whose caller is not known is the session's."""
        root = made[0]
        for key, (trajectory, chain, meta) in self._by_key.items():
            if trajectory is root:
                continue
            parent, step = self._caller(key, chain, meta)
            if parent is None or parent is trajectory:
                parent, step = root, None
            trajectory.parent_id, trajectory.parent_step_id = parent.id, step
        for trajectory in made[1:]:
            trajectory.episode_id = root.id
            if trajectory.parent_id is None:
                trajectory.parent_id = root.id
        self._cut_circles(made)

    def _caller(self, key: str, chain: Chain, meta: dict[str, Any]) -> tuple[Trajectory | None, str | None]:
        wanted = meta.get("toolUseId")
        around = self._by_key.get(meta.get("parentAgentId", ""))
        # Ids are certain, wherever their call is; prompts are not.
        named = (wanted, self._call_of_agent.get(key), key, self._call_of_prompt.get(chain.first_prompt or None))
        for call_id in named:
            found = None if call_id is None else self._step_of_call.get(call_id)
            if found is not None and found[1] is not chain:
                return found[0], found[1].step_of_call[call_id or ""]
        return (None, None) if around is None else (around[0], None)

    def _cut_circles(self, made: list[Trajectory]) -> None:
        """Agents that began each other, by what a file says: the first of them is the session's."""
        parents = {one.id: one for one in made}
        for trajectory in made[1:]:
            seen, above = {trajectory.id}, trajectory
            while above.parent_id is not None and above.parent_id in parents:
                above = parents[above.parent_id]
                if above.id in seen:
                    trajectory.parent_id, trajectory.parent_step_id = made[0].id, None
                    break
                seen.add(above.id)


_BESIDE = frozenset(
    {"file-history-snapshot", "queue-operation", "permission-mode", "mode", "last-prompt", "tag", "agent-name"}
    | {"agent-color", "agent-setting", "frame-link", "pr-link", "content-replacement", "stream_event", "progress"}
    | {"atis-latch", "tools-used", "cost-state"}
)
"""Kinds of lines that no model reads."""
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}


class Lines:
    """The lines of one file: conversations by agent, the session's own under the empty name."""

    def __init__(self, report: ImportReport) -> None:
        self.chains: dict[str, list[Line]] = {}
        self.session_id: str | None = None
        self.facts: dict[str, Any] = {}
        """Titles and totals, for the metadata of the session."""
        self.environment: dict[str, Any] = {}
        self.attachments = 0
        """Lines of which it is not known what the model read, unless the requests are there."""
        self.requests = Requests(report)
        self._report = report
        self._uuids: set[str] = set()
        self._chain_of: dict[str, str] = {}
        self._last: dict[str, str] = {}

    def add(self, record: Fields) -> None:
        """Adds a line."""
        kind = record.require_text("type")
        self.session_id = self.session_id or record.name("sessionId") or record.name("session_id")
        if kind in ("user", "assistant", "system", "attachment") and not self._is_stream_head(record, kind):
            self._add_line(record, kind)
        elif kind in KINDS:
            self.requests.add(record, kind)
        elif kind in _TITLES:
            self.facts["title"] = record.text(_TITLES[kind]) or record.text("title")
        elif kind == "result":
            names = ("total_cost_usd", "num_turns", "duration_ms", "subtype", "usage", "modelUsage", "model_usage")
            self.facts["result"] = {name: record.get(name) for name in names if record.get(name) is not None}
        elif kind in _BESIDE or kind == "system":
            if kind == "progress" and record.name("uuid"):
                self._pass_on(record)
            self._report.note("lines that are no part of a conversation", kind != "system")
        else:
            self._report.drop(f"lines of an unknown kind: {kind[:40]}")

    def _is_stream_head(self, record: Fields, kind: str) -> bool:
        """Whether a line is the first of a printed stream: what the session can use."""
        if kind != "system" or record.get("subtype") != "init" or "parentUuid" in record.values:
            return False
        for name in ("cwd", "model", "tools", "claude_code_version"):
            if record.get(name) is not None:
                self.environment[name] = record.get(name)
        return True

    def _add_line(self, record: Fields, kind: str) -> None:
        uuid = record.name("uuid")
        if uuid is not None and uuid in self._uuids:
            self._report.note("lines that a file has twice, joined")
            return
        # One that no other file has.
        uuid = uuid or str(record.place)
        self._uuids.add(uuid)
        parent = record.name("parentUuid")
        chain = self._chain(record, parent)
        if "parentUuid" not in record.values:
            # A printed stream has no chain: each line follows the one before it of its agent.
            parent = self._last.get(chain)
        self._chain_of[uuid], self._last[chain] = chain, uuid
        message = record.require_object("message") if kind in ("user", "assistant") else None
        if message is not None and "parts" in message.values and "content" not in message.values:
            message.refuse("content", "a text or a list of blocks, and not the parts of Qwen Code's sessions")
        line = Line(record, kind, uuid, parent, record.time("timestamp"), message, record.text("agentName"))
        self.chains.setdefault(chain, []).append(line)
        if kind == "assistant":
            answered, is_error = record.name("requestRef"), record.flag("isApiErrorMessage")
            line.request = self.requests.answered(answered) if answered or is_error else None
            line.is_call = line.request is not None or self.requests.is_empty
        elif kind == "system" and record.get("subtype") == "api_error":
            error = record.object("error")
            self.requests.fail(record if error is None else error)
        elif is_prompt(line):
            self.requests.turn()
        else:
            self.attachments += kind == "attachment" and queued(line) is None

    def _pass_on(self, record: Fields) -> None:
        """A line that no model reads, but that others follow."""
        uuid = record.require_name("uuid")
        if uuid not in self._uuids:
            self._uuids.add(uuid)
            chain = self._chain(record, record.name("parentUuid"))
            self._chain_of[uuid] = chain
            if chain in self.chains:
                line = Line(record, "progress", uuid, record.name("parentUuid"), None, None)
                self.chains[chain].append(line)

    def _chain(self, record: Fields, parent: str | None) -> str:
        """The agent that a line is of; empty for the session's own."""
        tool_use = record.name("parent_tool_use_id")
        if tool_use is not None:
            return tool_use
        if not record.flag("isSidechain"):
            return ""
        own = record.name("agentId")
        if own is not None:
            return own
        known = self._chain_of.get(parent or "")
        # Releases before 2.1 have no agent ids: a sub-agent is what follows one first line.
        return known if known else f"sidechain-{sum(one.startswith('sidechain-') for one in self.chains) + 1}"


SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_BEGIN = 1 << 16
_TIME = re.compile(rb'"timestamp": ?"([0-9TZ:.+-]{1,40})"')


@dataclass
class SessionFiles:
    """The files of one session."""

    main: Input
    agents: list[Input] = field(default_factory=list)


def sessions_of(given: Given) -> list[SessionFiles]:
    """The sessions that an argument names. Raises as ``inputs_of``."""
    files = inputs_of(given, SUFFIXES)
    agents = [one for one in files if _is_agent(one.path)]
    sessions = {one.path: SessionFiles(one) for one in files if not _is_agent(one.path)}
    for path, session in sessions.items():
        if session.main.is_open_file or is_address(path):
            continue
        # Also where the session was named alone.
        inside = os.path.join(glob.escape(path.removesuffix(".jsonl")), "subagents", "**", "agent-*.jsonl")
        session.agents = [Input(one) for one in sorted(glob.glob(inside, recursive=True))]
        beside = os.path.join(glob.escape(os.path.dirname(path)), "agent-*.jsonl")
        name = os.path.basename(path).removesuffix(".jsonl").encode()
        session.agents += [Input(one) for one in sorted(glob.glob(beside)) if name in Input(one).begin(_BEGIN)]
    known = {one.path for session in sessions.values() for one in session.agents}
    # Without their session, sub-agents are sessions of their own.
    alone = [SessionFiles(one) for one in agents if one.path not in known]
    # What a fork or a resumed session copied is of the session that began, else ended, before it.
    return sorted([*sessions.values(), *alone], key=lambda one: _times(one.main))


def _times(source: Input) -> tuple[str, str]:
    """The times of a file's first and last line with one; empty where it is compressed, or not on this machine."""
    if source.is_open_file or is_address(source.path) or not source.path.endswith(".jsonl"):
        return "", ""
    with source.opened() as file:
        begin = _TIME.findall(file.read(_BEGIN))
        file.seek(max(0, os.path.getsize(source.path) - _BEGIN))
        end = _TIME.findall(file.read(_BEGIN))
    return (begin[0].decode() if begin else "", end[-1].decode() if end else "")


def _is_agent(path: str) -> bool:
    return path.replace("\\", "/").rpartition("/")[2].startswith("agent-")
