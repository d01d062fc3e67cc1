"""``rt.probe``: checks with a few calls what an endpoint serves, before hours are spent on rollouts."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from rollout_trace.clients import stainless
from rollout_trace.clients.common import client_kind, wrap
from rollout_trace.clients.openai import protocol_of
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.engines.profiles import AUTO, profile
from rollout_trace.probes.report import ProbeCall, ProbeReport, ProtocolProbe, report_of
from rollout_trace.record.log import StepLog
from rollout_trace.record.settings import Settings
from rollout_trace.record.state import TrajectoryState

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

_Body = dict[str, Any]

_QUESTION = "Name a colour, and say in one sentence what it makes you think of."
_MESSAGES = [{"role": "user", "content": _QUESTION}]
_TOOL: _Body = {
    "type": "function",
    "function": {
        "name": "look_up_colour",
        "description": "Looks up the hex code of a colour.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
_REPEATABLE: _Body = {"max_tokens": 16, "temperature": 0, "seed": 7}
# For reasoning models, which refuse `max_tokens` and a temperature, and need room to reason.
_BARE: _Body = {"max_completion_tokens": 256}
_TEMPERATURES = (0.5, 1.0)


@dataclass(frozen=True, slots=True)
class _CallTemplate:
    """The form of the test calls in one protocol."""

    resource: tuple[str, ...]
    """Attributes of the client that lead to ``create``."""
    prompt: _Body
    limit: str = "max_tokens"
    """Name of the field that limits the completion's length."""
    has_seed: bool = True
    has_choices: bool = True
    """Whether the protocol has ``n``."""
    tool: _Body | None = None
    """A tool definition; None if the protocol has no tools."""
    alternatives: tuple[_Body, ...] = ({},)
    """Options of the calls at two temperatures, tried in order until a server refuses none of them.

    Servers refuse ``top_logprobs`` without ``logprobs``.
    """

    def translate(self, options: _Body) -> _Body:
        """Options of a chat call under this protocol's names."""
        names = {"max_tokens": self.limit}
        if self.limit == "max_output_tokens":
            names["max_completion_tokens"] = self.limit
        return {names.get(name, name): value for name, value in options.items() if self.has_seed or name != "seed"}


_TEMPLATES = {
    "openai.chat": _CallTemplate(
        ("chat", "completions"),
        {"messages": _MESSAGES},
        tool=_TOOL,
        alternatives=({"top_logprobs": 5, "logprobs": True}, {}),
    ),
    "openai.completions": _CallTemplate(("completions",), {"prompt": _QUESTION}),
    "openai.responses": _CallTemplate(
        ("responses",),
        {"input": _QUESTION},
        limit="max_output_tokens",
        has_seed=False,
        has_choices=False,
        tool={"type": "function", "strict": False, **_TOOL["function"]},
    ),
}


@overload
def probe(client: OpenAI, model: str, *, engine: str | None = None, protocols: Sequence[str] = ...) -> ProbeReport: ...


@overload
def probe(
    client: AsyncOpenAI, model: str, *, engine: str | None = None, protocols: Sequence[str] = ...
) -> Coroutine[Any, Any, ProbeReport]: ...


def probe(
    client: Any, model: str, *, engine: str | None = None, protocols: Sequence[str] = ("openai.chat",)
) -> ProbeReport | Coroutine[Any, Any, ProbeReport]:
    """A report of what a client's endpoint serves: token ids, logprobs, their alignment, streamed and unstreamed.

    Makes a handful of tiny calls on a copy of the client, in each named protocol: plain, the same again and streamed,
    and if the protocol has them, with a tool, with ``n=2``, and at two temperatures. They share the client's
    connections and are recorded in no trajectory of yours.
    A call that is refused or fails is reported, not raised. ``print(rt.probe(client, model))`` prints a table.

    Args:
        client: of the openai SDK, wrapped or not. With an async client, ``await`` the result.
        model: name of the model to call.
        engine: as for ``wrap_openai``; None means the engine that the client is wrapped with, else ``auto``.
        protocols: those that the agent uses, of ``openai.chat``, ``openai.completions`` and ``openai.responses``.

    Raises:
        TypeError: not a client object of the openai SDK, or ``protocols`` is a single string.
        ValueError: the engine, or a protocol, is unknown.
    """
    if isinstance(protocols, str):
        raise TypeError(f"protocols={protocols!r}: expected a list of protocols, such as [{protocols!r}].")
    unknown = [name for name in protocols if name not in _TEMPLATES]
    if unknown or not protocols:
        raise ValueError(f"protocols={list(protocols)!r}: expected one or more of {', '.join(_TEMPLATES)}.")
    kind = client_kind(client, "openai")
    if kind is None:
        raise TypeError(f"probe() needs a client object of the openai SDK, such as OpenAI(), got {client!r:.80}.")
    settings = stainless.settings_of(client)
    used_profile = profile(engine) or (settings.engine if settings is not None else None) or AUTO
    # Neither opened in the context nor closed: it reaches no file, and causes no warning about what it lacks.
    trajectory = Trajectory(name="probe")
    trajectory._recorder = TrajectoryState(StepLog(), None)
    mode = settings.logprobs_mode if settings is not None else None
    bound = Settings(protocol_of, used_profile, trajectory=weakref.ref(trajectory), logprobs_mode=mode)
    calls = _Calls(
        wrap(client.copy(), "openai", bound, example="OpenAI"), model, trajectory, list(dict.fromkeys(protocols))
    )
    return calls.make_async() if kind == "async" else calls.make()


class _Calls:
    """The test calls of one probe. The results so far decide which follow."""

    def __init__(self, client: Any, model: str, trajectory: Trajectory, protocols: Sequence[str]) -> None:
        self._client = client
        self._model = model
        self._trajectory = trajectory
        self._done = 0
        self._probed = {protocol: ProtocolProbe(model, protocol) for protocol in protocols}

    def make(self) -> ProbeReport:
        for protocol, probed in self._probed.items():
            template = _TEMPLATES[protocol]
            for name, body in self._plan(template, probed):
                error = None
                try:
                    answer = self._create(template)(**body)
                    # Read to its end: the call is recorded when the stream has ended.
                    for _ in answer if "stream" in body else ():
                        pass
                except Exception as failure:
                    error = failure
                self._store_result(probed, name, error)
        return report_of(list(self._probed.values()))

    async def make_async(self) -> ProbeReport:
        for protocol, probed in self._probed.items():
            template = _TEMPLATES[protocol]
            for name, body in self._plan(template, probed):
                error = None
                try:
                    answer = await self._create(template)(**body)
                    if "stream" in body:
                        async for _ in answer:
                            pass
                except Exception as failure:
                    error = failure
                self._store_result(probed, name, error)
        return report_of(list(self._probed.values()))

    def _create(self, template: _CallTemplate) -> Any:
        resource = self._client
        for name in template.resource:
            resource = getattr(resource, name)
        return resource.create

    def _plan(self, template: _CallTemplate, probed: ProtocolProbe) -> Iterator[tuple[str, _Body]]:
        """Name and body of each call. A generator: it reads the result of a call before it yields the next."""
        common = _REPEATABLE
        yield "plain", self._body(template, common)
        if _was_refused(probed, "plain"):
            common = _BARE
            # Under the same name: its result replaces the refused one's.
            yield "plain", self._body(template, common)
        if not probed.answered("plain"):
            return
        yield "again", self._body(template, common)
        yield "streamed", self._body(template, common, stream=True)
        if template.tool is not None:
            yield "with tools", self._body(template, common, tools=[template.tool])
        if template.has_choices:
            # Some servers refuse several choices at temperature 0.
            yield "n=2", self._body(template, {**common, "temperature": 1} if "temperature" in common else common, n=2)
        if common is _REPEATABLE and probed.has_logprobs("plain"):
            yield from self._at_temperatures(template, probed)

    def _at_temperatures(self, template: _CallTemplate, probed: ProtocolProbe) -> Iterator[tuple[str, _Body]]:
        """The calls at two temperatures.

        With alternatives (``top_logprobs``) two answers can be compared even if their first tokens differ; without them
        if the server refuses alternatives.
        """
        for options in template.alternatives:
            for temperature in _TEMPERATURES:
                name = f"temperature {temperature}"
                yield name, self._body(template, {**_REPEATABLE, "temperature": temperature}, **options)
            if not any(_was_refused(probed, f"temperature {temperature}") for temperature in _TEMPERATURES):
                return

    def _body(self, template: _CallTemplate, common: _Body, **options: Any) -> _Body:
        return {"model": self._model, **template.prompt, **template.translate(common), **options}

    def _store_result(self, probed: ProtocolProbe, name: str, error: Exception | None) -> None:
        steps = self._trajectory.steps[self._done :]
        self._done += len(steps)
        probed.calls[name] = ProbeCall.of(name, steps, error)
        probed.steps[name] = steps


def _was_refused(probed: ProtocolProbe, name: str) -> bool:
    return probed.calls[name].status in (400, 403, 422)


__all__ = ["ProbeCall", "ProbeReport", "probe"]
