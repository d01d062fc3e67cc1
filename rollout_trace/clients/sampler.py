"""What the recorders of samplers in the process share: calls of one prompt each, their JSON, versions of the weights.

A sampler has no bytes: what is recorded of a call is written as JSON in the shape of ``rollout_trace.wire.sampled``.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import orjson

from rollout_trace import guard
from rollout_trace.clients import recorder
from rollout_trace.clients.recorder import current, is_inside
from rollout_trace.clients.swap import ClassSwap
from rollout_trace.record.settings import Settings, check_call_bytes

if TYPE_CHECKING:
    from rollout_trace.data.model import LogprobsMode
    from rollout_trace.record.call import Call
    from rollout_trace.wire.profiles import EngineProfile

Version: TypeAlias = str | int | None
PolicyVersion: TypeAlias = Version | Callable[[], Version]
"""A version of the weights, or a function that returns the current version when a call begins."""

C = TypeVar("C", bound="Calls")

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """The settings of one recording class of samplers."""

    calls: Settings
    logprobs: bool = False
    """Whether logprobs are asked for where the caller does not."""
    version: PolicyVersion = None


recording: ClassSwap[SamplerSettings] = ClassSwap("_rollout_trace_sampler")
undo: WeakKeyDictionary[Any, Callable[[], object]] = WeakKeyDictionary()
"""Of objects that keep their class, what makes them stop recording."""


def settings_for(
    engine: EngineProfile, keep_bytes: bool, max_call_bytes: int, logprobs_mode: LogprobsMode | None, logprobs: bool
) -> SamplerSettings:
    """The settings of a sampler, from the arguments of its ``wrap_...`` function.

    Raises:
        TypeError, ValueError: as ``check_call_bytes``; ``logprobs`` is no bool; ``logprobs_mode`` is unknown.
    """
    if not isinstance(logprobs, bool):
        raise TypeError(f"logprobs={logprobs!r:.80}: expected True or False.")
    if logprobs_mode not in (None, "raw", "processed", "constrained"):
        raise ValueError(f"logprobs_mode={logprobs_mode!r:.80} is not known; known: constrained, processed, raw, None.")
    limit = check_call_bytes(max_call_bytes)
    calls = Settings(_no_path, engine, bool(keep_bytes), logprobs_mode=logprobs_mode, max_call_bytes=limit)
    return SamplerSettings(calls, logprobs)


def _no_path(method: str, path: str) -> None:
    """Samplers send no requests."""


def put_on(sampler: Any, settings: SamplerSettings, methods: Any, version: PolicyVersion) -> None:
    """Makes an object record with these settings, which replace any it had. ``version``: checked."""
    # Versions are many, and their functions may hold the sampler: a class that is kept would keep it.
    recording.put_on(sampler, replace(settings, version=version), methods, is_kept=version is None)


def check_version(version: PolicyVersion) -> PolicyVersion:
    """Checks a ``policy_version`` argument and returns it.

    Raises:
        TypeError: neither a text, a whole number, nor a function.
    """
    return version if version is None or callable(version) or isinstance(version, str) else _whole(version)


def _whole(version: object) -> int:
    try:
        if not isinstance(version, bool):
            return index(version)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(
        f"policy_version={version!r:.80}: expected a text, a whole number, or a function without arguments that "
        "returns one."
    )


def take_off(sampler: Any) -> None:
    """Makes an object stop recording: it gets its own class again. Any other object stays as it is."""
    undone = undo.pop(sampler, None) if is_known(sampler) else None
    if undone is not None:
        undone()
    if recording.settings_of(sampler) is not None:
        recording.take_off(sampler)


def is_recording(sampler: Any) -> bool:
    """Whether an object is a recording sampler."""
    return recording.settings_of(sampler) is not None or (is_known(sampler) and sampler in undo)


def is_known(thing: Any) -> bool:
    """Whether an object can be a key of weak references: many objects of other kinds cannot."""
    return type(thing).__hash__ is not None and hasattr(type(thing), "__weakref__")


def version_of(sampler: Any) -> Version:
    """The version of the weights that a call begins with; None where none was given."""
    settings = recording.settings_of(sampler)
    version = None if settings is None else settings.version
    if not callable(version):
        return version
    try:
        value = version()
        return value if value is None or isinstance(value, str) else _whole(value)
    except Exception as error:
        # The function is the user's, and so is the call: it goes on, and is recorded without a version.
        guard.failed("policy_version", None, error)
        return None


def plain_copies(base: Any) -> Any:
    """A ``__reduce_ex__`` by which copies, and what is pickled, are of the object's own class: they record nothing."""

    @functools.wraps(object.__reduce_ex__)
    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        made = base.__reduce_ex__(self, protocol)
        newobj = copyreg.__newobj__  # type: ignore[attr-defined]
        if isinstance(made, tuple) and made[0] is newobj:
            # A partial: of `__newobj__` itself pickle demands the class that the object has now.
            return functools.partial(newobj, base), made[1][1:], *made[2:]
        return made

    return __reduce_ex__


class Calls:
    """The calls that are one call of the user's: one for each prompt. A context manager around it.

    What it raises ends all of them. ``answer`` ends them otherwise.
    """

    __slots__ = ("_outer", "calls")

    def __init__(self, settings: Settings, protocol: str, requests: Iterable[bytes]) -> None:
        self._outer: Call | None = None
        self.calls: list[Call | None] = []
        # All of them before the first call begins: one that began must end.
        for request in list(requests):
            call = recorder.begin(settings, protocol)
            self.calls.append(call)
            recorder.attempt(call, request)

    def __enter__(self) -> object:
        self._outer = current.get()
        current.set(next((call for call in self.calls if call is not None), self._outer))
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        current.set(self._outer)
        if error is not None:
            self.failed(error)
            guard.hide_frame(error)

    def failed(self, error: BaseException) -> None:
        """Ends all calls with an exception."""
        for call in self.calls:
            recorder.failed(call, error)

    def answer(self, bodies: Callable[[], Sequence[Mapping[str, Any] | None]]) -> None:
        """Ends each call with its answer. ``bodies``: makes them, one for each call in their order."""
        found: Sequence[Mapping[str, Any] | None] = ()
        try:
            found = bodies()
            if len(found) != len(self.calls):
                raise RuntimeError(f"{len(found)} answers came for {len(self.calls)} prompts.")
        except Exception as error:
            found = ()
            for call in self.calls:
                guard.failed("answer", call, error)
        finally:
            for at, call in enumerate(self.calls):
                answered(call, found[at] if at < len(found) else None)


def begun(make: Callable[[], C]) -> C | None:
    """The calls that begin here; None where an outer layer records them, or the recorder failed."""
    try:
        return None if is_inside() else make()
    except Exception as error:
        guard.failed("begin", None, error)
        return None


def begun_with(
    make: Callable[[inspect.BoundArguments], C], function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> C | None:
    """``begun`` for calls that are made from the arguments by name; None, too, where the function does not take them.

    Then its own call raises what is wrong.
    """
    if is_inside():
        return None
    try:
        bound = signature_of(function).bind(*args, **kwargs)
    except TypeError:
        return None
    return begun(lambda: make(bound))


def answered(call: Call | None, body: Mapping[str, Any] | None) -> None:
    """Ends a call with its answer; None: it got none."""
    if call is None:
        return
    try:
        if body is not None:
            recorder.body(call, encoded(body))
    except Exception as error:
        guard.failed("answer", call, error)
    finally:
        recorder.ended(call)


def encoded(value: Any) -> bytes:
    """JSON of a request or an answer. What JSON cannot hold becomes the name of its type."""
    try:
        return orjson.dumps(value, default=_plain, option=_OPTIONS)
    except (TypeError, ValueError):
        # Lone surrogates, or numbers beyond 64 bits.
        return json.dumps(value, default=_plain, skipkeys=True).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(type(value), "__struct_fields__"):
        return {name: getattr(value, name) for name in type(value).__struct_fields__}
    if isinstance(value, (set, frozenset, tuple)) or type(value).__name__ in ("dict_keys", "dict_values"):
        return list(value)
    # Never its repr: that may be of any length, and hold anything.
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


@functools.lru_cache(maxsize=64)
def signature_of(function: Any) -> inspect.Signature:
    """The signature of a function, looked at once."""
    return inspect.signature(function)
