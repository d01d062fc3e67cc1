"""``rt.probe``: checks with a few calls what an endpoint serves, before hours are spent on rollouts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload
from urllib.parse import urlsplit

from rollout_trace.clients import probe_turns, stainless
from rollout_trace.clients.probe_report import ProbeCall, ProbeReport, ProtocolProbe, extras_of, report_of
from rollout_trace.clients.sdks import client_kind, protocol_of, wrap
from rollout_trace.data.trajectory import Trajectory
from rollout_trace.record.log import StepLog
from rollout_trace.record.settings import Settings
from rollout_trace.record.state import TrajectoryState
from rollout_trace.wire.engine import SGLANG_GENERATE, VLLM_GENERATE, Engine, path_of, resolve
from rollout_trace.wire.profiles import AUTO, PROMPT_FIELDS, profile

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from rollout_trace.data.model import Step

_Body = dict[str, Any]

_SAMPLED: Final[dict[str, Any]] = {"temperature": 1, "seed": 7}
"""A mask is what is left to be sampled from: engines fail to give one, or give a trivial one, without a draw."""
_TOP_K: Final = 20

_OWN: Final = {"vllm": VLLM_GENERATE, "sglang": SGLANG_GENERATE}

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
# For servers of vLLM that return sampling masks, which fail without a draw from the k likeliest tokens.
_MASKABLE: _Body = {"max_tokens": 16, **_SAMPLED, "extra_body": {"top_k": _TOP_K}}
_TEMPERATURES = (0.5, 1.0)


@dataclass(frozen=True, slots=True)
class _CallTemplate:
    """The form of the test calls in one protocol."""

    resource: str
    """Path of attributes of the client that leads to ``create``."""
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
        "chat.completions",
        {"messages": _MESSAGES},
        tool=_TOOL,
        alternatives=({"top_logprobs": 5, "logprobs": True}, {}),
    ),
    "openai.completions": _CallTemplate("completions", {"prompt": _QUESTION}),
    "openai.responses": _CallTemplate(
        "responses",
        {"input": _MESSAGES},
        limit="max_output_tokens",
        has_seed=False,
        has_choices=False,
        tool={"type": "function", "strict": False, **_TOOL["function"]},
    ),
}


@overload
def probe(
    client: OpenAI, model: str, *, engine: str | Engine | None = None, protocols: Sequence[str] = ...
) -> ProbeReport: ...


@overload
def probe(
    client: AsyncOpenAI, model: str, *, engine: str | Engine | None = None, protocols: Sequence[str] = ...
) -> Coroutine[Any, Any, ProbeReport]: ...


def probe(
    client: Any, model: str, *, engine: str | Engine | None = None, protocols: Sequence[str] = ("openai.chat",)
) -> ProbeReport | Coroutine[Any, Any, ProbeReport]:
    """Reports what a client's endpoint serves: token ids, logprobs and their alignment, streamed and unstreamed.

    Makes a few tiny calls on a copy of the client, in each named protocol: a plain one, the same again, the same
    streamed, and, if the protocol has them, one with a tool, one with ``n=2``, and two at different temperatures. Two
    more calls in each protocol, and two to vLLM's or SGLang's own ``generate`` endpoint, ask for everything
    ``rt.Engine`` can ask for. Two others test exact turns: one sends ids beside its messages, the other is a second
    turn. The calls share the client's connections and are not recorded in your trajectories. A call that is refused or
    fails is reported, not raised. ``print(rt.probe(client, model))`` prints a table.

    Args:
        client: a client of the openai SDK, wrapped or not. With an async client, ``await`` the result.
        model: name of the model to call.
        engine: as for ``wrap_openai``; of an ``rt.Engine`` only the name is used. None: the engine that the client is
            wrapped with, else ``auto``.
        protocols: the protocols that the agent uses, any of ``openai.chat``, ``openai.completions`` and
            ``openai.responses``.

    Raises:
        TypeError: ``client`` is not a client object of the openai SDK, or ``protocols`` is a single string.
        ValueError: the engine, or a protocol, is unknown.
    """
    if isinstance(protocols, str):
        raise TypeError(f"protocols={protocols!r}: expected a list of protocols, such as [{protocols!r}].")
    unknown = [name for name in protocols if name not in _TEMPLATES]
    if unknown or not protocols:
        raise ValueError(f"protocols={list(protocols)!r}: expected one or more of {', '.join(_TEMPLATES)}.")
    kind = client_kind(client, "openai")
    if kind is None:
        raise TypeError(f"probe() needs a client of the openai SDK, such as OpenAI(). Got {client!r:.80}.")
    settings = stainless.settings_of(client)
    used_profile = resolve(engine)[0] or (settings.engine if settings is not None else None) or AUTO
    # Neither opened in the context nor closed: it reaches no file, and causes no warning about what it lacks.
    trajectory = Trajectory(name="probe")
    trajectory._recorder = TrajectoryState(StepLog(), None)
    mode = settings.logprobs_mode if settings is not None else None
    bound = Settings(protocol_of, used_profile, True, weakref.ref(trajectory), mode)
    extras = {"routed_experts": True, "prompt_logprobs": 1, "top_logprobs": 2, "sampling_mask": True}
    # All extras, of an engine that has some.
    everything = None if used_profile.name == "openai" else Engine(used_profile.name, **extras)  # type: ignore[arg-type]
    wishing = replace(bound, wishes=everything, quiet=True)

    def wrapped(settings: Settings) -> Any:
        return wrap(client.copy(), "openai", settings, example="OpenAI")

    def exact(engine: str) -> Any:
        wishes = Engine(engine, exact_turns=True)  # type: ignore[arg-type]
        return wrapped(replace(bound, engine=profile(engine), wishes=wishes, quiet=True))

    calls = _Calls(wrapped(bound), wrapped(wishing), exact, model, trajectory, list(dict.fromkeys(protocols)))
    return calls.make_async() if kind == "async" else calls.make()


class _Call(NamedTuple):
    """One test call."""

    send: Callable[[], Any]
    streamed: bool
    store: Callable[[Exception | None], None]
    """Stores the result; the argument is the exception that it raised."""


class _Calls:
    """The test calls of one probe. The results so far decide which follow."""

    def __init__(
        self,
        client: Any,
        curious: Any,
        exact: Callable[[str], Any],
        model: str,
        trajectory: Trajectory,
        protocols: Sequence[str],
    ) -> None:
        """``curious`` is the client that asks for extras too; ``exact`` makes one with exact turns, for an engine."""
        self._client = client
        self._curious = curious
        self._exact = exact
        self._model = model
        self._trajectory = trajectory
        self._done = 0
        self._common = _REPEATABLE
        """Options of the latest protocol's calls."""
        self._probed = {protocol: ProtocolProbe(model, protocol) for protocol in protocols}

    def make(self) -> ProbeReport:
        for call in self._calls():
            error = None
            try:
                answer = call.send()
                # Read to its end: the call is recorded when the stream has ended.
                for _ in answer if call.streamed else ():
                    pass
            except Exception as failure:
                error = failure
            call.store(error)
        return report_of(list(self._probed.values()))

    async def make_async(self) -> ProbeReport:
        for call in self._calls():
            error = None
            try:
                answer = await call.send()
                if call.streamed:
                    async for _ in answer:
                        pass
            except Exception as failure:
                error = failure
            call.store(error)
        return report_of(list(self._probed.values()))

    def _calls(self) -> Iterator[_Call]:
        """All calls. A generator: it reads the result of a call before it yields the next."""
        for protocol, probed in self._probed.items():
            template = _TEMPLATES[protocol]
            for name, body in self._plan(template, probed):
                send = partial(attrgetter(template.resource)(self._client).create, **body)
                yield _Call(send, "stream" in body, partial(self._store_result, probed, name))
            if probed.answered("plain"):
                yield from self._for_exact_turns(template, probed)
                yield from self._for_extras(template, probed)
        yield from self._own()

    def _for_exact_turns(self, template: _CallTemplate, probed: ProtocolProbe) -> Iterator[_Call]:
        step = probed.step("plain")
        engine, protocol = step.engine if step is not None else None, probed.protocol
        if engine is None or (engine, protocol) not in PROMPT_FIELDS:
            return
        ids = probe_turns.ids_of(step)
        if ids is None:
            probed.exact_turns = probe_turns.without_ids(protocol)
            return
        body = probe_turns.alone(self._body(template, self._common), protocol)
        create = attrgetter(template.resource)(self._exact(engine)).create
        send = partial(create, **probe_turns.with_ids(body, engine, protocol, ids))
        yield _Call(send, False, partial(self._store_taken, probed))
        if probed.exact_turns is not None and probed.exact_turns.takes_ids is None:
            return
        latest = self._trajectory.steps[-1]
        if latest.status != "ok":
            # A turn continues one of its own client.
            yield _Call(partial(create, **body), False, lambda error: None)
            latest = self._trajectory.steps[-1]
        send = partial(create, **probe_turns.continued(body, protocol, latest))
        yield _Call(send, False, partial(self._store_second_turn, probed))

    def _for_extras(self, template: _CallTemplate, probed: ProtocolProbe) -> Iterator[_Call]:
        step = probed.step("plain")
        if step is None or step.engine in (None, "openai"):
            return
        common = _BARE if self._common is _BARE else _MASKABLE
        create = attrgetter(template.resource)(self._curious).create
        for options in ({}, {"stream": True}):
            send = partial(create, **self._body(template, common, **options))
            yield _Call(send, bool(options), partial(self._store_extras, probed, probed.protocol, bool(options)))

    def _own(self) -> Iterator[_Call]:
        """Calls of the engine's own endpoint."""
        for probed in self._probed.values():
            step = probed.step("plain")
            if step is None or step.prompt_token_ids is None or step.engine not in _OWN:
                continue
            ids, protocol = step.prompt_token_ids.tolist(), _OWN[step.engine]
            parts = urlsplit(str(self._client.base_url))
            url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}{path_of(protocol)}"
            body: _Body = {"model": self._model, "token_ids": ids}
            body["sampling_params"] = {"max_tokens": 8, **_SAMPLED, "top_k": _TOP_K}
            if step.engine == "sglang":
                sampling = {"max_new_tokens": 8, "temperature": 1, "top_k": _TOP_K}
                body = {"input_ids": ids, "sampling_params": sampling}
            post = partial(self._curious.post, url, cast_to=object)
            yield _Call(partial(post, body=body), False, partial(self._store_extras, probed, protocol, False))
            if probed.extras[-1].given is not None:
                # Of the package that the client is of, which is loaded.
                from openai import AsyncStream, Stream

                kind: Any = AsyncStream if client_kind(self._client, "openai") == "async" else Stream
                send = partial(post, body={**body, "stream": True}, stream=True, stream_cls=kind[object])
                yield _Call(send, True, partial(self._store_extras, probed, protocol, True))
            return

    def _plan(self, template: _CallTemplate, probed: ProtocolProbe) -> Iterator[tuple[str, _Body]]:
        """Name and body of each call for ids and logprobs."""
        self._common = _REPEATABLE
        yield "plain", self._body(template, self._common)
        if _was_refused(probed, "plain") or probed.calls["plain"].status == 500:
            self._common = _BARE if _was_refused(probed, "plain") else _MASKABLE
            # Under the same name: its result replaces the refused one's.
            yield "plain", self._body(template, self._common)
        if not probed.answered("plain"):
            return
        common = self._common
        yield "again", self._body(template, common)
        yield "streamed", self._body(template, common, stream=True)
        if template.tool is not None:
            yield "with tools", self._body(template, common, tools=[template.tool])
        if template.has_choices:
            # Some servers refuse several choices at temperature 0.
            yield "n=2", self._body(template, {**common, "temperature": 1} if "temperature" in common else common, n=2)
        if common is _BARE or not probed.calls["plain"].logprobs:
            return
        # With alternatives (`top_logprobs`) two answers can be compared even if their first tokens differ; without them
        # if the server refuses alternatives.
        for options in template.alternatives:
            for temperature in _TEMPERATURES:
                name = f"temperature {temperature}"
                yield name, self._body(template, {**common, "temperature": temperature}, **options)
            if not any(_was_refused(probed, f"temperature {temperature}") for temperature in _TEMPERATURES):
                return

    def _body(self, template: _CallTemplate, common: _Body, **options: Any) -> _Body:
        return {"model": self._model, **template.prompt, **template.translate(common), **options}

    def _store_result(self, probed: ProtocolProbe, name: str, error: Exception | None) -> None:
        probed.steps[name] = steps = self._new_steps()
        probed.calls[name] = ProbeCall.of(name, steps, error)

    def _store_extras(self, probed: ProtocolProbe, protocol: str, streamed: bool, error: Exception | None) -> None:
        steps = self._new_steps()
        problem = ProbeCall.of(protocol, steps, error)
        failure = None if problem.answered else problem.problem
        probed.extras.extend(extras_of(protocol, streamed=streamed, steps=steps, problem=failure))

    def _store_taken(self, probed: ProtocolProbe, error: Exception | None) -> None:
        steps = self._new_steps()
        call = ProbeCall.of("with ids", steps, error)
        failure = None if call.answered else call.problem
        probed.exact_turns = probe_turns.taken(probed.protocol, steps, status=call.status, failure=failure)

    def _store_second_turn(self, probed: ProtocolProbe, error: Exception | None) -> None:
        steps = self._new_steps()[-1:]
        call = ProbeCall.of("second turn", steps, error)
        assert probed.exact_turns is not None
        failure = None if call.answered else call.problem
        known = [one.exact_turns.tokenizes for one in self._probed.values() if one.exact_turns is not None]
        tokenizes = next((one for one in known if one is not None), None)
        probed.exact_turns = probe_turns.with_second_turn(probed.exact_turns, steps, failure, tokenizes)

    def _new_steps(self) -> Sequence[Step]:
        steps = self._trajectory.steps[self._done :]
        self._done += len(steps)
        return steps


def _was_refused(probed: ProtocolProbe, name: str) -> bool:
    return probed.calls[name].status in (400, 403, 422)


__all__ = ["ProbeCall", "ProbeReport", "probe"]
