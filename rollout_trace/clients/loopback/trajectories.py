"""Which trajectory a request of a program belongs to, and what its conversations say: sub-agents, tools, calls beside.

All is read from the wire. A conversation is told by the header with its thread, where the program sends one, else by
its system prompt and first message. One with tools whose first message is an argument of an earlier tool call is a
sub-agent: a trajectory inside that of the call. All others are the program's own trajectory.
"""

from __future__ import annotations

import contextvars
import glob
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace import guard
from rollout_trace.clients.loopback.openings import Opening, fork_in, opening_of, opening_of_step, texts_in
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record import lifecycle
from rollout_trace.record.state import state_of
from rollout_trace.wire.tool_results import tool_runs_of

if TYPE_CHECKING:
    from rollout_trace.clients.loopback.programs import Program
    from rollout_trace.data.model import Step, ToolCall

_PATIENCE = 0.25
"""Seconds that a request waits for the end of the answer that may have begun its sub-agent: it may be a moment away."""
_LONG = 24
"""Characters from which a text is told from others by being in one."""
_KINDS = ("subagent_type", "agent_type", "agent_name")
"""Arguments that only a tool call has which begins a sub-agent."""
_NAMES = (*_KINDS, "agent", "task_name", "name", "description")
"""Arguments of a tool call that say which sub-agent it begins, the best one first."""
_PLACE = re.compile(r"\{\{\w+\}\}")
"""In a prompt for several sub-agents: what differs."""
_VERSION = re.compile(r"(?!OpenAI/|Anthropic/)[^/]*/v?(\d[\w.+-]*)")
"""In ``user-agent``: of the program, not of the SDK that it uses."""


class _Caller(NamedTuple):
    """The tool call that began a sub-agent."""

    trajectory: Trajectory
    step: Step
    at: int
    """Its position among those of the step."""
    call: ToolCall
    argument: str
    """What the sub-agent was asked: a call may begin several."""


class ProgramTrajectories:
    """The trajectories of one run of a program. Safe for threads.

    Args:
        main: gives the program's own trajectory, opened by the first call.
        program: how it is known; None: not at all.
        environ: its environment.
    """

    def __init__(
        self,
        main: Callable[[], Trajectory | None],
        program: Program | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._main = main
        self._program = program
        self._environ = environ or {}
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._of: dict[str | tuple[str, ...], Trajectory] = {}
        """By the key of a conversation."""
        self._by_call: dict[tuple[str, int, str], Trajectory] = {}
        """Sub-agents by the step that called them, which of its calls did, and what it asked them."""
        self._children: list[tuple[Trajectory, Trajectory]] = []
        """Sub-agents, each with the trajectory that called it, in the order they began."""
        self._root: Trajectory | None = None

    @property
    def root(self) -> Trajectory | None:
        """The program's own trajectory; None before its first call."""
        return self._root

    def of_request(self, protocol: str, headers: Mapping[str, str], body: bytes) -> Trajectory | None:
        """The trajectory of a request. Opens it where it is the first of its conversation.

        Args:
            protocol: of the request.
            headers: names in lower case.
            body: of the request.
        """
        opening = opening_of(protocol, body)
        thread = None if self._program is None else _header(headers, self._program.thread_headers)
        begins = None if self._program is None else self._program.fork
        fork = None if begins is None else fork_in(protocol, body, begins)
        if fork is not None and opening is not None:
            opening = opening._replace(key=(*opening.key, fork), texts=(fork,))
        is_told = thread is not None or fork is not None
        key = thread or (None if opening is None else opening.key)
        with self._lock:
            root = self._opened(headers)
            if root is None or key is None or opening is None:
                return root
            if not self._of:
                self._of[key] = root
            if key in self._of:
                return self._of[key]
        # Without the lock: it may wait, and other conversations go on.
        # Without tools it is no agent, but a summary that a tool asks for, say, whose prompt has the tool's argument.
        caller = self._found_caller(opening, is_told=is_told) if opening.has_tools or is_told else None
        with self._lock:
            if key not in self._of:
                self._of[key] = self._begun(root, caller, is_told=is_told)
            return self._of[key]

    def _opened(self, headers: Mapping[str, str]) -> Trajectory | None:
        if self._root is None:
            self._root = root = self._main()
            if root is not None:
                root.metadata = {**(root.metadata or {}), **_facts(self._program, headers)}
                beside = None if self._program is None else self._program.beside
                lifecycle.change_episode(root, partial(_mark_auxiliary, beside))
                if self._program is not None and self._program.compaction is not None:
                    lifecycle.change_episode(root, partial(_mark_compactions, *self._program.compaction))
        return self._root

    def _found_caller(self, opening: Opening, *, is_told: bool) -> _Caller | None:
        """The call that began the conversation of a first request; None where there is none.

        Args:
            is_told: the program says that it is another one, by its thread or as a fork.
        """
        end = time.monotonic() + _PATIENCE
        texts = (*opening.texts, *opening.latest) if is_told else opening.texts
        found = self._caller(texts, None if is_told else opening)
        while found is None and self._is_running() and time.monotonic() < end:
            time.sleep(0.005)
            found = self._caller(texts, None if is_told else opening)
        return found

    def _begun(self, root: Trajectory, caller: _Caller | None, *, is_told: bool) -> Trajectory:
        """The trajectory of a conversation that begins."""
        if caller is None:
            # A conversation of its own, of which no call says how it began, is another one all the same.
            return self._child(root, None, root.name) if is_told else root
        key = caller.step.id, caller.at, caller.argument
        if key not in self._by_call:
            self._by_call[key] = self._child(caller.trajectory, caller.step.id, _name_of(caller.call))
        return self._by_call[key]

    def _caller(self, texts: Sequence[str], opening: Opening | None) -> _Caller | None:
        """The call that one of the texts has an argument of, with the least beside it; the latest of equals."""
        best, least = None, float("inf")
        for trajectory in reversed(self._all()):
            is_own = opening is not None and self._is_begun_alike(trajectory, opening)
            for step in reversed(trajectory.steps):
                for at, call in enumerate(() if step.completion is None else step.completion.tool_calls):
                    for argument, beside in _asked(call, texts, is_own=is_own):
                        if beside < least:
                            best, least = _Caller(trajectory, step, at, call, argument), beside
        return best

    def _is_begun_alike(self, trajectory: Trajectory, opening: Opening) -> bool:
        """Whether a conversation of a trajectory has the same system prompt."""
        return any(key[0] == opening.key[0] for key, one in list(self._of.items()) if one is trajectory)

    def _all(self) -> list[Trajectory]:
        return [one for one in (self._root, *(child for child, _ in list(self._children))) if one is not None]

    def _is_running(self) -> bool:
        states = map(state_of, self._all())
        return any(one is not None and one.log is not None and one.log.is_running for one in states)

    def _child(self, parent: Trajectory, step_id: str | None, name: str) -> Trajectory:
        child = Trajectory(name=name)
        # In the context of the program's start: its recording is that of the child.
        self._context.copy().run(lifecycle.begin, child, parent)
        if step_id is not None:
            child.parent_step_id = step_id
        self._children.append((child, parent))
        return child

    def close(self, *, is_aborted: bool = False) -> None:
        """Ends the trajectories: the program has ended. Closes those of sub-agents; its own is who opened it to close.

        The tools that were run are those whose results the requests have.
        """
        guard.run_all("tool runs", *(partial(_add_tool_runs, one) for one in self._all()))
        guard.run_all("transcript", self._note_transcript)
        with self._lock:
            children, self._children = self._children, []
        for child, parent in reversed(children):
            if is_aborted:
                child.status = "aborted"
            self._context.copy().run(lifecycle.finish, child, parent, None)

    def _note_transcript(self) -> None:
        """Notes where the program has written its own account of the session."""
        session = ((self._root and self._root.metadata) or {}).get("session_id")
        if self._root is None or self._program is None or self._program.transcript is None or not session:
            return
        variable, folder, pattern = self._program.transcript
        home = self._environ.get(variable) or os.path.join(self._environ.get("HOME", ""), folder)
        found = next(Path(home).glob(pattern.format(glob.escape(session))), None)
        if found is not None:
            self._root.metadata = {**(self._root.metadata or {}), "transcript": str(found)}


def _add_tool_runs(trajectory: Trajectory) -> None:
    known = {run.tool_call_id for run in trajectory.tool_runs}
    found = [run for run in tool_runs_of(trajectory.steps) if run.tool_call_id not in known]
    trajectory.tool_runs += [replace(run, arguments=_parsed(run.arguments)) for run in found]


def _header(headers: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((headers[name] for name in names if headers.get(name)), None)


def _facts(program: Program | None, headers: Mapping[str, str]) -> dict[str, Any]:
    """What the first request says of the program, for ``metadata``."""
    version = _VERSION.match(headers.get("user-agent", ""))
    facts = {
        "cli": None if program is None else program.name,
        "cli_version": None if version is None or program is None else version[1],
        "session_id": None if program is None else _header(headers, program.session_headers),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _name_of(call: ToolCall) -> str:
    arguments = _parsed(call.arguments)
    given = arguments if isinstance(arguments, dict) else {}
    return next((given[name] for name in _NAMES if isinstance(given.get(name), str) and given[name]), "sub-agent")


def _parsed(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _asked(call: ToolCall, texts: Sequence[str], *, is_own: bool) -> Iterator[tuple[str, int]]:
    """The arguments of a call that the texts have, each with the number of characters that the two differ by.

    Args:
        is_own: the texts begin a conversation like that of the call: it may be the same one, summed up, in which
            commands are quoted.
    """
    arguments = _parsed(call.arguments)
    is_agent = isinstance(arguments, dict) and any(arguments.get(name) for name in _KINDS)
    found = list(filter(None, _strings(arguments)))
    for one in found:
        parts = _PLACE.split(one)
        for text in texts:
            if _says(one, text, is_agent=is_agent) and (not is_own or len(text) <= 2 * len(one)):
                yield one, abs(len(text) - len(one))
            elif len(parts) > 1 and text.startswith(parts[0]) and any(other.join(parts) == text for other in found):
                yield text, 0


def _strings(arguments: Any) -> Iterator[str]:
    waiting = [arguments]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one.strip()
        elif isinstance(one, (list, dict)):
            waiting.extend(one.values() if isinstance(one, dict) else one)


def _says(argument: str, text: str, *, is_agent: bool) -> bool:
    """Whether a text is an argument of a call, or one is in the other: long enough, or a line for an agent."""
    shortest = min(len(argument), _LONG)
    is_part = shortest == _LONG <= len(text) and (argument in text or text in argument)
    return argument == text or is_part or (is_agent and argument in text.splitlines())


def _mark_auxiliary(beside: str | None, trajectory: Trajectory) -> None:
    """Marks the calls beside an agent's own conversation, which are not trained on: titles, routers, summaries.

    They offer no tools, in a conversation of their own, where others do; or their system prompt is one of ``beside``.
    """
    own = {opening_of_step(step).key for step in trajectory.steps if step.tools}
    for step in trajectory.steps:
        key = opening_of_step(step).key
        if (own and not step.tools and key not in own) or (beside is not None and re.match(beside, key[0])):
            step.trainable = False
            step.metadata = {**(step.metadata or {}), "auxiliary": True}


def _mark_compactions(place: str, pattern: str, trajectory: Trajectory) -> None:
    """Marks the calls that sum up the conversation, with which the next one begins."""
    for step in trajectory.steps:
        said = (step.sampling or {}).get(place) if place != "messages" else texts_in(list(step.messages or ())[-1:])
        if re.search(pattern, json.dumps(said), re.DOTALL):
            step.metadata = {**(step.metadata or {}), "compaction": True}
