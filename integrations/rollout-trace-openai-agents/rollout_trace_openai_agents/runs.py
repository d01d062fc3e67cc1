"""One run of the SDK, from its call to its end, and the hooks through which it reports its agents and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agents import MaxTurnsExceeded, Model, RunHooks

from rollout_trace.integration import enter, entered, guarded
from rollout_trace_openai_agents import models
from rollout_trace_openai_agents.frames import RunFrame

if TYPE_CHECKING:
    from inspect import BoundArguments

    from agents import Agent

    from rollout_trace_openai_agents.settings import Settings

_begun: ContextVar[Run | None] = ContextVar("rollout_trace_openai_agents_run", default=None)


def begun() -> Run | None:
    """The run that this context is inside of, recorded or not."""
    return _begun.get()


class Run:
    """One call of ``Runner.run``, ``run_sync`` or ``run_streamed``; a context manager around it.

    Args:
        bound: the arguments of the call.
        settings: of the recording; with None the run is recorded only if a tracing processor claims it.
    """

    def __init__(self, bound: BoundArguments, settings: Settings | None) -> None:
        self._bound: BoundArguments | None = bound
        self._agent: Agent[Any] = bound.arguments["starting_agent"]
        self._config = bound.arguments.get("run_config")
        """The ``RunConfig``, a mapping, or None."""
        session = bound.arguments.get("session")
        ids = (
            getattr(session, "session_id", None),
            bound.arguments.get("conversation_id"),
            option(self._config, "group_id"),
        )
        self._conversation: str | None = next((one for one in ids if isinstance(one, str) and one), None)
        self._settings = settings
        self._lasts = False
        self.frame: RunFrame | None = None
        """None as long as the run is not recorded."""
        self.result: Any = None
        """What the call returned."""

    def call(self, function: Callable[..., Any]) -> Any:
        """Calls the SDK's function, once, and lets go of the arguments."""
        bound, self._bound = self._bound, None
        assert bound is not None
        try:
            return function(*bound.args, **bound.kwargs)
        finally:
            # The frame of this method is in the traceback of an error, and the SDK's have none of them there.
            bound = None

    def __enter__(self) -> None:
        self._outer = (_begun.get(), entered())
        _begun.set(self)
        if self._settings is not None:
            self.claim(self._settings)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        outer_run, outer_frame = self._outer
        _begun.set(outer_run)
        enter(outer_frame)
        if error is not None or not self._lasts:
            self._end(error)

    @guarded
    def claim(self, settings: Settings) -> None:
        """Begins to record, if nothing has yet. To be called in the context of the run."""
        if self.frame is None:
            self.frame = RunFrame(self._agent, settings, self._conversation).enter()

    def goes_on(self) -> None:
        """If the call returned a stream, the run goes on after it, until the stream's task has ended."""
        task = getattr(self.result, "run_loop_task", None)
        if isinstance(task, asyncio.Task):
            self._lasts = True
            task.add_done_callback(self._task_ended)

    @guarded
    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._end(asyncio.CancelledError())
            return
        # Not `task.exception()`: asyncio logs an exception that nobody has asked for.
        error = getattr(task, "_exception", None) or getattr(self.result, "_stored_exception", None)
        if error is None and self._is_out_of_turns():
            # Raised for whoever reads the stream, and not in the task.
            error = MaxTurnsExceeded(f"Max turns ({self.result.max_turns}) exceeded")
        self._end(error)

    def _is_out_of_turns(self) -> bool:
        result = self.result
        if result.max_turns is None or getattr(result, "_max_turns_handled", False):
            return False
        return bool(result.current_turn > result.max_turns)

    @guarded
    def _end(self, error: BaseException | None) -> None:
        if self.frame is not None:
            if error is None:
                self.frame.waits_for = [_waiting(one) for one in getattr(self.result, "interruptions", None) or ()]
            self.frame.end(error)

    def prepare(self, agent: Agent[Any]) -> None:
        """Before a model call of an agent: it is its turn, and its model records."""
        if self.frame is None or not self.frame.is_open:
            return
        self.frame.turn_of(agent)
        configured = option(self._config, "model")
        model = agent.model if configured is None else configured
        if isinstance(model, Model):
            models.record_model(model, self.frame.settings)
            return
        provider = option(self._config, "model_provider")
        if provider is not None:
            models.record_provider(provider, self.frame.settings)


def _waiting(item: Any) -> dict[str, Any]:
    """What a run waits for. ``item``: a ``ToolApprovalItem``."""
    call = item.raw_item
    fields = {"tool_call_id": "call_id", "name": "name", "arguments": "arguments"}
    found = {
        ours: call.get(name) if isinstance(call, dict) else getattr(call, name, None) for ours, name in fields.items()
    }
    return {**found, "for": "approval"}


def option(config: Any, name: str) -> Any:
    """A field of a ``RunConfig``, which may be a mapping or None."""
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)


@guarded
def _turn_begins(run: Run, context: Any, agent: Agent[Any], *_: Any) -> None:
    run.prepare(agent)


@guarded
def _tool_begins(run: Run, context: Any, agent: Agent[Any], tool: Any) -> None:
    if run.frame is not None and run.frame.is_open:
        run.frame.tool_begins(agent, tool, context)


@guarded
def _tool_ends(run: Run, context: Any, agent: Agent[Any], tool: Any, result: Any) -> None:
    if run.frame is not None and run.frame.is_open:
        run.frame.tool_ends(agent, tool, context, result)


_REPORTS: dict[str, Callable[..., None]] = {
    "on_agent_start": _turn_begins,
    # Also when a run is resumed, where the agent has started before.
    "on_llm_start": _turn_begins,
    "on_tool_start": _tool_begins,
    "on_tool_end": _tool_ends,
}


def _forwarding(name: str) -> Any:
    report = _REPORTS.get(name)

    async def hook(self: ForwardingHooks, *args: Any, **kwargs: Any) -> None:
        if report is not None:
            report(self._run, *args, **kwargs)
        if self._inner is not None:
            await getattr(self._inner, name)(*args, **kwargs)

    return hook


class ForwardingHooks(RunHooks[Any]):
    """The hooks that a recorded run gets: they report to it, and pass everything on to those of its user."""

    def __init__(self, run: Run, inner: Any) -> None:
        self._run = run
        self._inner = inner


# All hooks that the installed release has, also those of which nothing is recorded.
for _name in [name for name in dir(RunHooks) if name.startswith("on_")]:
    setattr(ForwardingHooks, _name, _forwarding(_name))
