"""``rt.probe``: what an endpoint really serves, before hours are spent on rollouts."""

from __future__ import annotations

import weakref
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, overload

from rollout_trace.clients import seam
from rollout_trace.clients.common import client_kind, wrap
from rollout_trace.clients.openai import protocol_of
from rollout_trace.clients.settings import Settings
from rollout_trace.engines import AUTO, profile
from rollout_trace.probe_report import ProbeCall, Probed, ProbeReport, report_of
from rollout_trace.steplog import StepLog
from rollout_trace.trajectories import Trajectory

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

_Body = dict[str, Any]

_MESSAGES = [{"role": "user", "content": "Name a colour, and say in one sentence what it makes you think of."}]
_TOOL = {
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


@overload
def probe(client: OpenAI, model: str, *, engine: str | None = None) -> ProbeReport: ...


@overload
def probe(client: AsyncOpenAI, model: str, *, engine: str | None = None) -> Coroutine[Any, Any, ProbeReport]: ...


def probe(client: Any, model: str, *, engine: str | None = None) -> ProbeReport | Coroutine[Any, Any, ProbeReport]:
    """What the endpoint of a client really serves: ids, logprobs, aligned or not, streamed as unstreamed.

    Makes a handful of tiny chat calls on a copy of the client: plain, the same again and streamed, with a tool, with
    ``n=2``, and one prompt at two temperatures. They share the client's connections and are in no trajectory of yours.
    A server that refuses or fails is reported, not raised. ``print(rt.probe(client, model))`` shows a table.

    Args:
        client: of the openai SDK, wrapped or not. With an async client, ``await`` what is returned.
        model: the name to ask for.
        engine: as for ``wrap_openai``; None: the one that the client is wrapped with, and without one ``auto``.

    Raises:
        TypeError: not a client object of the openai SDK.
        ValueError: the engine is not known.
    """
    kind = client_kind(client, "openai")
    if kind is None:
        raise TypeError(f"probe() needs a client object of the openai SDK, such as OpenAI(), got {client!r:.80}.")
    settings = seam.settings_of(client)
    asked = profile(engine) or (settings.engine if settings is not None else None) or AUTO
    # Neither opened in the context nor closed: nothing of it reaches a file, and nobody is warned of what it lacks.
    trajectory = Trajectory(name="probe")
    trajectory._log = StepLog()
    bound = Settings(protocol_of, asked, trajectory=weakref.ref(trajectory))
    calls = _Calls(wrap(client.copy(), "openai", bound), model, trajectory)
    return calls.make_async() if kind == "async" else calls.make()


class _Calls:
    """The calls of one probe. What has come of them so far decides which are made."""

    def __init__(self, client: Any, model: str, trajectory: Trajectory) -> None:
        self._client = client
        self._model = model
        self._trajectory = trajectory
        self._done = 0
        self._probed = Probed(model)

    def make(self) -> ProbeReport:
        for name, body in self._plan():
            error = None
            try:
                answer = self._client.chat.completions.create(**body)
                for _ in answer if "stream" in body else ():
                    pass
            except Exception as failure:
                error = failure
            self._note(name, error)
        return report_of(self._probed)

    async def make_async(self) -> ProbeReport:
        for name, body in self._plan():
            error = None
            try:
                answer = await self._client.chat.completions.create(**body)
                if "stream" in body:
                    async for _ in answer:
                        pass
            except Exception as failure:
                error = failure
            self._note(name, error)
        return report_of(self._probed)

    def _plan(self) -> Iterator[tuple[str, _Body]]:
        usual = _REPEATABLE
        yield "plain", self._body(usual)
        if self._was_refused("plain"):
            usual = _BARE
            yield "plain", self._body(usual)
        if not self._probed.answered("plain"):
            return
        yield "again", self._body(usual)
        yield "streamed", self._body(usual, stream=True)
        yield "with tools", self._body(usual, tools=[_TOOL])
        # Greedy sampling of several choices is refused by some.
        yield "n=2", self._body({**usual, "temperature": 1} if "temperature" in usual else usual, n=2)
        if usual is _REPEATABLE and self._probed.has_logprobs("plain"):
            yield from self._at_temperatures()

    def _at_temperatures(self) -> Iterator[tuple[str, _Body]]:
        """Alternatives make two answers comparable whose first tokens differ; not every server gives any."""
        for options in ({"top_logprobs": 5}, {}):
            for temperature in _TEMPERATURES:
                name = f"temperature {temperature}"
                yield name, self._body({**_REPEATABLE, "temperature": temperature}, **options)
            if not any(self._was_refused(f"temperature {temperature}") for temperature in _TEMPERATURES):
                return

    def _body(self, usual: _Body, **options: Any) -> _Body:
        return {"model": self._model, "messages": _MESSAGES, **usual, **options}

    def _was_refused(self, name: str) -> bool:
        return self._probed.calls[name].status in (400, 403, 422)

    def _note(self, name: str, error: Exception | None) -> None:
        steps = self._trajectory.steps[self._done :]
        self._done += len(steps)
        self._probed.calls[name] = ProbeCall.of(name, steps, error)
        self._probed.steps[name] = steps


__all__ = ["ProbeCall", "ProbeReport", "probe"]
