"""``rt.probe``: what an endpoint really serves, before hours are spent on rollouts."""

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
from rollout_trace.probes.report import ProbeCall, Probed, ProbeReport, report_of
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
# For models that take no `max_tokens`, or no temperature: those that reason, and need room for it.
_BARE: _Body = {"max_completion_tokens": 256}
_TEMPERATURES = (0.5, 1.0)


@dataclass(frozen=True, slots=True)
class _Way:
    """How one protocol is called."""

    resource: tuple[str, ...]
    prompt: _Body
    limit: str = "max_tokens"
    seeds: bool = True
    choices: bool = True
    tool: _Body | None = None
    alternatives: tuple[_Body, ...] = ({},)
    """What a call at another temperature asks for beside it. Alternatives are refused without ``logprobs``."""

    def usual(self, options: _Body) -> _Body:
        """Options of a chat call, as this protocol has them."""
        names = {"max_tokens": self.limit}
        if self.limit == "max_output_tokens":
            names["max_completion_tokens"] = self.limit
        return {names.get(name, name): value for name, value in options.items() if self.seeds or name != "seed"}


_WAYS = {
    "openai.chat": _Way(
        ("chat", "completions"),
        {"messages": _MESSAGES},
        tool=_TOOL,
        alternatives=({"top_logprobs": 5, "logprobs": True}, {}),
    ),
    "openai.completions": _Way(("completions",), {"prompt": _QUESTION}),
    "openai.responses": _Way(
        ("responses",),
        {"input": _QUESTION},
        limit="max_output_tokens",
        seeds=False,
        choices=False,
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
    """What the endpoint of a client really serves: ids, logprobs, aligned or not, streamed as unstreamed.

    Makes a handful of tiny calls on a copy of the client, in each protocol that is named: plain, the same again and
    streamed, and as far as the protocol has them with a tool, with ``n=2``, and one prompt at two temperatures. They
    share the client's connections and are in no trajectory of yours.
    A server that refuses or fails is reported, not raised. ``print(rt.probe(client, model))`` shows a table.

    Args:
        client: of the openai SDK, wrapped or not. With an async client, ``await`` what is returned.
        model: the name to ask for.
        engine: as for ``wrap_openai``; None: the one that the client is wrapped with, and without one ``auto``.
        protocols: of ``openai.chat``, ``openai.completions`` and ``openai.responses``, those that the agent speaks.

    Raises:
        TypeError: not a client object of the openai SDK, or one text in the place of the protocols.
        ValueError: the engine, or a protocol, is not known.
    """
    if isinstance(protocols, str):
        raise TypeError(f"protocols={protocols!r}: expected a list of protocols, such as [{protocols!r}].")
    unknown = [name for name in protocols if name not in _WAYS]
    if unknown or not protocols:
        raise ValueError(f"protocols={list(protocols)!r}: expected one or more of {', '.join(_WAYS)}.")
    kind = client_kind(client, "openai")
    if kind is None:
        raise TypeError(f"probe() needs a client object of the openai SDK, such as OpenAI(), got {client!r:.80}.")
    settings = stainless.settings_of(client)
    asked = profile(engine) or (settings.engine if settings is not None else None) or AUTO
    # Neither opened in the context nor closed: nothing of it reaches a file, and nobody is warned of what it lacks.
    trajectory = Trajectory(name="probe")
    trajectory._recorder = TrajectoryState(StepLog(), None)
    mode = settings.logprobs_mode if settings is not None else None
    bound = Settings(protocol_of, asked, trajectory=weakref.ref(trajectory), logprobs_mode=mode)
    calls = _Calls(wrap(client.copy(), "openai", bound), model, trajectory, list(dict.fromkeys(protocols)))
    return calls.make_async() if kind == "async" else calls.make()


class _Calls:
    """The calls of one probe. What has come of them so far decides which are made."""

    def __init__(self, client: Any, model: str, trajectory: Trajectory, protocols: Sequence[str]) -> None:
        self._client = client
        self._model = model
        self._trajectory = trajectory
        self._done = 0
        self._probed = {protocol: Probed(model, protocol) for protocol in protocols}

    def make(self) -> ProbeReport:
        for protocol, probed in self._probed.items():
            way = _WAYS[protocol]
            for name, body in self._plan(way, probed):
                error = None
                try:
                    answer = self._create(way)(**body)
                    for _ in answer if "stream" in body else ():
                        pass
                except Exception as failure:
                    error = failure
                self._note(probed, name, error)
        return report_of(list(self._probed.values()))

    async def make_async(self) -> ProbeReport:
        for protocol, probed in self._probed.items():
            way = _WAYS[protocol]
            for name, body in self._plan(way, probed):
                error = None
                try:
                    answer = await self._create(way)(**body)
                    if "stream" in body:
                        async for _ in answer:
                            pass
                except Exception as failure:
                    error = failure
                self._note(probed, name, error)
        return report_of(list(self._probed.values()))

    def _create(self, way: _Way) -> Any:
        resource = self._client
        for name in way.resource:
            resource = getattr(resource, name)
        return resource.create

    def _plan(self, way: _Way, probed: Probed) -> Iterator[tuple[str, _Body]]:
        usual = _REPEATABLE
        yield "plain", self._body(way, usual)
        if _was_refused(probed, "plain"):
            usual = _BARE
            yield "plain", self._body(way, usual)
        if not probed.answered("plain"):
            return
        yield "again", self._body(way, usual)
        yield "streamed", self._body(way, usual, stream=True)
        if way.tool is not None:
            yield "with tools", self._body(way, usual, tools=[way.tool])
        if way.choices:
            # Greedy sampling of several choices is refused by some.
            yield "n=2", self._body(way, {**usual, "temperature": 1} if "temperature" in usual else usual, n=2)
        if usual is _REPEATABLE and probed.has_logprobs("plain"):
            yield from self._at_temperatures(way, probed)

    def _at_temperatures(self, way: _Way, probed: Probed) -> Iterator[tuple[str, _Body]]:
        """Alternatives make two answers comparable whose first tokens differ; not every server gives any."""
        for options in way.alternatives:
            for temperature in _TEMPERATURES:
                name = f"temperature {temperature}"
                yield name, self._body(way, {**_REPEATABLE, "temperature": temperature}, **options)
            if not any(_was_refused(probed, f"temperature {temperature}") for temperature in _TEMPERATURES):
                return

    def _body(self, way: _Way, usual: _Body, **options: Any) -> _Body:
        return {"model": self._model, **way.prompt, **way.usual(usual), **options}

    def _note(self, probed: Probed, name: str, error: Exception | None) -> None:
        steps = self._trajectory.steps[self._done :]
        self._done += len(steps)
        probed.calls[name] = ProbeCall.of(name, steps, error)
        probed.steps[name] = steps


def _was_refused(probed: Probed, name: str) -> bool:
    return probed.calls[name].status in (400, 403, 422)


__all__ = ["ProbeCall", "ProbeReport", "probe"]
