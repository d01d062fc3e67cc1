"""``rt.wrap_tinker``: recording for the ``SamplingClient`` of Tinker's SDK.

The SDK is not imported. Overridden is ``sample`` alone: ``sample_async`` calls it, ``compute_logprobs`` does not.
"""

from __future__ import annotations

import functools
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from inspect import BoundArguments
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rollout_trace import guard
from rollout_trace.clients import recorder, sampler
from rollout_trace.clients.sampler import Calls, PolicyVersion, SamplerSettings
from rollout_trace.record.settings import MAX_CALL_BYTES
from rollout_trace.wire.profiles import EngineProfile

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode

S = TypeVar("S")

PROTOCOL: Final = "tinker.sample"
# The SDK does not document of what the logprobs are; its users measured that temperature and top-k do not change them
# (thinking-machines-lab/tinker-feedback, issue 148).
_LOGPROBS_MODE: Final = "raw"
_ENGINE: Final = EngineProfile("tinker")
_ARGUMENTS: Final = (
    "num_samples", "include_prompt_logprobs", "topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
)  # fmt: skip
_ANSWER_EXTRA: Final = ("target_prompt_logprobs", "prompt_alt_tokens")


def wrap_tinker(
    sampling_client: S,
    *,
    policy_version: PolicyVersion = None,
    logprobs_mode: LogprobsMode | None = None,
    keep_bytes: bool = False,
    max_call_bytes: int = MAX_CALL_BYTES,
) -> S:
    """Records every sample that a ``SamplingClient`` of Tinker's SDK takes. Returns the same object.

    Each ``sample`` or ``sample_async`` is a call, and each of its ``num_samples`` sequences a step. The call belongs to
    the trajectory in which ``sample`` was called, wherever its future is awaited; the future is the SDK's own.
    ``compute_logprobs`` samples nothing and is not recorded.

    Args:
        sampling_client: a ``tinker.SamplingClient``, or the future of one, which newer releases return instead.
        policy_version: version of the weights, such as the path they were saved under, or a function that returns it
            when a call begins. The client itself does not know it.
        logprobs_mode: distribution of the logprobs, see ``Step.logprobs_mode``; ``raw`` by default.
        keep_bytes: keep the recorded request and answer on the steps.
        max_call_bytes: limit on the bytes kept of one request, and of one answer.

    Wrapping again only changes the settings. ``rt.unwrap(sampling_client)`` undoes it.

    Raises:
        TypeError: ``sampling_client`` is not a client of Tinker's SDK, or an argument has the wrong type.
        ValueError: ``logprobs_mode`` is unknown, or ``max_call_bytes`` is below 1.
    """
    kind = sampler.recording.plain(type(sampling_client))
    names = {one.__name__ for one in kind.__mro__ if one.__module__.partition(".")[0] == "tinker"}
    if "SamplingClient" not in names:
        raise TypeError(
            "wrap_tinker() needs a SamplingClient, such as service_client.create_sampling_client(...), "
            f"got {sampling_client!r:.80}."
        )
    settings = sampler.settings_for(_ENGINE, keep_bytes, max_call_bytes, logprobs_mode, False)
    version = sampler.check_version(policy_version)
    if hasattr(kind, "future"):
        # A future of the client, which the SDK gives in its place for now: it passes calls on.
        _wrap_when_there(sampling_client, settings, version)
    else:
        sampler.put_on(sampling_client, settings, _methods, version)
    return sampling_client


def _wrap_when_there(pending: Any, settings: SamplerSettings, version: PolicyVersion) -> None:
    """Makes the client of a future record, before anyone gets it."""
    wrapped: list[Any] = []
    is_wanted = [True]

    def arrived(future: Any) -> None:
        if is_wanted and not future.cancelled() and future.exception() is None:
            wrapped.append(future.result())
            sampler.put_on(wrapped[0], settings, _methods, version)

    def forget() -> None:
        is_wanted.clear()
        for client in wrapped:
            sampler.take_off(client)

    sampler.take_off(pending)
    sampler.undo[pending] = forget
    _when_done(pending, arrived)


def _when_done(pending: Any, arrived: Callable[[Any], None]) -> None:
    """Calls a function with a future that is done, before those who wait for it go on."""
    # The SDK's own futures warn of the names of concurrent.futures; the one inside has them.
    future = pending.future() if hasattr(pending, "future") else pending
    waiter = _Waiter(arrived)
    # Threads that wait in `result()` are woken before callbacks run: a step would still be running then.
    with future._condition:
        future._waiters.append(waiter)
    future.add_done_callback(waiter.done)


def _methods(base: Any, settings: SamplerSettings) -> dict[str, Any]:
    @functools.wraps(base.sample)
    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = functools.partial(_Run, self, settings)
        run = sampler.begun_with(made, base.sample, (self, *args), kwargs)
        if run is None:
            with guard.hidden_frame:
                return base.sample(self, *args, **kwargs)
        with run:
            future = base.sample(self, *args, **kwargs)
        run.follow(future)
        return future

    return {"sample": sample, "__reduce_ex__": sampler.plain_copies(base)}


class _Run(Calls):
    """One call of ``sample``."""

    __slots__ = ("_facts",)

    def __init__(self, client: Any, settings: SamplerSettings, bound: BoundArguments) -> None:
        arguments = bound.arguments
        # In the client itself since 0.3x; before, the SDK asked its server.
        request: dict[str, Any] = {"model": getattr(client, "_base_model", None)}
        chunks = list(arguments["prompt"].chunks)
        if all(hasattr(chunk, "tokens") for chunk in chunks):
            request["prompt"] = [token for chunk in chunks for token in chunk.tokens]
        else:
            # With images it has no ids.
            request["prompt_chunks"] = [_chunk(chunk) for chunk in chunks]
        params = arguments["sampling_params"]
        fields = params.model_dump() if hasattr(params, "model_dump") else vars(params)
        request.update((name, value) for name, value in fields.items() if value is not None)
        request.update((name, arguments[name]) for name in _ARGUMENTS if arguments.get(name))
        session = getattr(client, "_sampling_session_id", None)
        if isinstance(session, str):
            request["sampling_session_id"] = session
        self._facts = {"logprobs_mode": _LOGPROBS_MODE, "policy_version": sampler.version_of(client)}
        super().__init__(settings.calls, PROTOCOL, [sampler.encoded(request)])

    def follow(self, future: Any) -> None:
        """Ends the call when the future does, before anyone who waits for it goes on."""
        (call,) = self.calls
        if call is None:
            return
        try:
            _when_done(future, self._resolved)
        except Exception as error:
            guard.failed("follow", call, error)
            recorder.ended(call)

    def _resolved(self, future: Any) -> None:
        """Ends the call with the result of a future, or its exception."""
        error = CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self.failed(error)
        else:
            self.answer(lambda: [_answer(future.result(), self._facts)])


class _Waiter:
    """A waiter of ``concurrent.futures``: called under the lock of the future, when it has its result."""

    def __init__(self, arrived: Callable[[Any], None]) -> None:
        self._arrived: Callable[[Any], None] | None = arrived

    def done(self, future: Any) -> None:
        """Passes the future on, the first time that it is called."""
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            return
        try:
            arrived(future)
        except Exception as error:
            guard.failed("answer", None, error)

    add_result = add_exception = add_cancelled = done


def _chunk(chunk: Any) -> dict[str, Any]:
    named = {"type": getattr(chunk, "type", type(chunk).__name__)}
    tokens = getattr(chunk, "tokens", None)
    if tokens is not None:
        return {**named, "tokens": list(tokens)}
    return {**named, "expected_tokens": getattr(chunk, "expected_tokens", None)}


def _answer(response: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A ``SampleResponse`` in the shape of ``rollout_trace.wire.sampled``."""
    answer: dict[str, Any] = {**facts, "choices": [_choice(*one) for one in enumerate(response.sequences)]}
    scores = _first(response, "prompt_logprobs_np", "prompt_logprobs")
    if scores is not None:
        answer["prompt_logprobs"] = scores
    top = _top(_first(response, "topk_prompt_logprobs_np", "topk_prompt_logprobs"))
    if top is not None:
        answer["prompt_top_tokens"] = top
    answer["cached_tokens"] = getattr(response, "prompt_cache_hit_tokens", None)
    answer["extra"] = {name: one for name in _ANSWER_EXTRA if (one := _tensors(getattr(response, name, None)))}
    return answer


def _choice(index: int, sequence: Any) -> dict[str, Any]:
    choice = {
        "index": index,
        "token_ids": _first(sequence, "tokens_np", "tokens"),
        "logprobs": _first(sequence, "logprobs_np", "logprobs"),
        "finish_reason": sequence.stop_reason,
    }
    top = _top(_first(sequence, "topk_logprobs_np", "topk_logprobs"))
    if top is not None:
        choice["top_tokens"] = top
    identity = getattr(sequence, "sequence_id", None)
    if isinstance(identity, str):
        choice["extra"] = {"sequence_id": identity}
    return choice


def _first(thing: Any, *names: str) -> Any:
    """The first of several attributes that is there: arrays before the lists that are made from them."""
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)


def _top(top: Any) -> dict[str, Any] | None:
    if top is None:
        return None
    if hasattr(top, "token_ids"):
        return {"ids": top.token_ids, "logprobs": top.logprobs}
    rows = [row or [] for row in top]
    return {"ids": [[one for one, _ in row] for row in rows], "logprobs": [[one for _, one in row] for row in rows]}


def _tensors(value: Any) -> Any:
    """Tensors as their numbers and shape; None for None."""
    if value is None:
        return None
    if hasattr(value, "tokens"):
        return {"tokens": _tensors(value.tokens), "logprobs": _tensors(value.logprobs)}
    names = ("data", "shape", "sparse_crow_indices", "sparse_col_indices")
    return {name: one for name in names if (one := getattr(value, name, None)) is not None}
