"""Sessions of Claude Code: its transcripts, those of sub-agents, and what ``--output-format stream-json`` prints."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass, field
from typing import Any

from rollout_trace.data.trajectory import Trajectory
from rollout_trace.file.addresses import is_address
from rollout_trace.importing._claude_code_chain import Chain
from rollout_trace.importing._claude_code_lines import Line, Lines
from rollout_trace.importing.fields import OnError
from rollout_trace.importing.imported import SESSIONS, Imported, ImportReport, Job, session_lines
from rollout_trace.importing.inputs import Given, Input, document, inputs_of


def claude_code(path: Given, *, on_error: OnError = "raise", report: ImportReport | None = None) -> Imported:
    """Reads sessions of Claude Code: a trajectory for each session, then those of its sub-agents.

    A response is one step even if it spans several lines; its usage is counted once. Since 2.1.332 sessions contain
    each request: messages, system prompt, tools and sampling parameters are those sent, and retries are attempts. For
    older releases, prompts are reconstructed from the messages before an answer, without system prompt, tools and
    sampling parameters. No session has token ids or logprobs. Abandoned (rewound) branches are kept, as steps with
    other prompts. Lines that a resumed or forked session copied from another imported session become messages, not
    steps.

    Args:
        path: session files, or folders such as ``~/.claude/projects``; the files of sub-agents beside a session are
            read with it. Or an open file.
        on_error: as for every importer, like ``report`` and the errors raised: see ``rollout_trace.importing``.
        report: as for every importer.
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


_BEGIN = 1 << 16
_TIME = re.compile(rb'"timestamp": ?"([0-9TZ:.+-]{1,40})"')


@dataclass
class SessionFiles:
    """The files of one session."""

    main: Input
    agents: list[Input] = field(default_factory=list)


def sessions_of(given: Given) -> list[SessionFiles]:
    """The sessions that an argument names. Raises as ``inputs_of``."""
    files = inputs_of(given, SESSIONS)
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
