"""The settings that an instrumented process records with: those of the innermost ``rt.instrument()`` that is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from rollout_trace.clients import sdks
from rollout_trace.clients.detect import by_host
from rollout_trace.record.settings import Settings
from rollout_trace.wire.engine import engine_text, resolve
from rollout_trace.wire.profiles import AUTO
from rollout_trace.wire.protocols import protocol_of_path

if TYPE_CHECKING:
    from rollout_trace.wire.engine import Engine
    from rollout_trace.wire.profiles import EngineName, EngineProfile

    EngineChoice = EngineName | Engine | Mapping[str, EngineName | Engine | None] | None


class _Asked(NamedTuple):
    profile: EngineProfile | None
    wishes: Engine | None


class Options:
    """The options of one ``rt.instrument()``.

    Raises:
        ValueError: an engine is unknown.
        TypeError: ``engine`` is of another type, or an address in it is no text.
    """

    def __init__(self, engine: EngineChoice) -> None:
        self._every: _Asked | None = None
        self._by_address: dict[str, _Asked] = {}
        if isinstance(engine, Mapping):
            self._by_address = {_address_key(key): _Asked(*resolve(value)) for key, value in engine.items()}
        else:
            self._every = _Asked(*resolve(engine))
        self._made: dict[tuple[Settings, _Asked], Settings] = {}
        self.has_engine = engine is not None
        """False where none was given: then that of an outer ``rt.instrument()`` counts."""
        self.engine_text = None if isinstance(engine, Mapping) else engine_text(engine)
        """The engine of every server, as text; None where none was given, or one for each address."""

    def settings(self, template: Settings, address: Callable[[], object]) -> Settings:
        """The settings for a call to a server, of the kind that the template is."""
        asked = self._asked(template, address)
        made = self._made.get((template, asked))
        if made is None:
            made = replace(template, engine=asked.profile, wishes=asked.wishes, source=None)
            self._made[template, asked] = made
        return made

    def _asked(self, template: Settings, address: Callable[[], object]) -> _Asked:
        if template is ANTHROPIC or self._every == _NOTHING:
            return _NOTHING
        url = str(address())
        if self._every is None:
            found = max((key for key in self._by_address if _is_at(url, key)), key=len, default=None)
            return self._adapted(template, _NOTHING if found is None else self._by_address[found])
        # What the program's own server takes, the API of a provider, which a judge may call, may refuse.
        known = by_host(url)
        return self._adapted(template, self._every if known is None else _Asked(known, self._every.wishes))

    @staticmethod
    def _adapted(template: Settings, asked: _Asked) -> _Asked:
        # Detecting an engine takes requests of the client's own, which an HTTP library's has none of.
        return _NOTHING if template.is_http and asked.profile is AUTO else asked


_NOTHING = _Asked(None, None)


def _address_key(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise TypeError(
            f"rt.instrument(engine={{{key!r:.80}: ...}}): expected the address of a server as text, such as "
            '"localhost:8000" or "http://gpu1:8000/v1".'
        )
    return key.rstrip("/")


def _is_at(url: str, key: str) -> bool:
    """Whether an address begins with a key: a host, a host with its port, or a URL."""
    if "://" in key:
        return url == key or url.startswith((f"{key}/", f"{key}?"))
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    place = f"{host}{parts.path}"
    return key in (host, parts.hostname) or place == key or place.startswith(f"{key}/")


loopback: str | None = None
"""Address of the loopback server that started this process. It records what is sent there."""
opened: list[Options] = []
"""Of the ``rt.instrument()`` calls that are not undone, in their order."""


def is_active() -> bool:
    """Whether a ``rt.instrument()`` is not undone."""
    return bool(opened)


def engine_in_force() -> str | None:
    """The engine in force for every server, as the text of a variable; None where there is none."""
    options = _latest()
    return None if options is None else options.engine_text


def _latest() -> Options | None:
    """The latest options that have an engine; without such, the latest of all."""
    # A copy: other threads may open and undo some.
    found = list(reversed(opened))
    return next((one for one in found if one.has_engine), found[0] if found else None)


def _in_force(template: Settings, address: Callable[[], object]) -> Settings | None:
    if loopback is not None and str(address()).startswith(loopback):
        return None
    options = _latest()
    return None if options is None else options.settings(template, address)


# One object each for as long as the process runs: classes are made for settings.
OPENAI: Settings = Settings(sdks.protocol_of, source=lambda address: _in_force(OPENAI, address))
ANTHROPIC: Settings = Settings(sdks.anthropic_protocol_of, source=lambda address: _in_force(ANTHROPIC, address))
HTTP: Settings = Settings(
    protocol_of_path, source=lambda address: _in_force(HTTP, address), is_http=True, is_guess=True
)
