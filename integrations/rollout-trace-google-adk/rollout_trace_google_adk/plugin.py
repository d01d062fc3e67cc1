"""The public API: ``record`` and ``RolloutPlugin``."""

from __future__ import annotations

from typing import TypeVar

from google.adk.apps import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.workflow import BaseNode

from rollout_trace.integration import Engine, check_engine
from rollout_trace_google_adk.hooks import install
from rollout_trace_google_adk.settings import Settings, set_on

T = TypeVar("T", bound=Runner | App | BaseNode)


def record(recorded: T, *, engine: str | Engine | None = None, keep_bytes: bool = False) -> T:
    """Records every run of a runner, of an app, or of an agent or workflow. Returns the same object.

    Everything that runs inside a recorded run is recorded with it: sub-agents, agents used as tools, and agents and
    runners that a tool makes. A second call replaces the settings of the first.

    Args:
        recorded: a ``Runner`` (``InMemoryRunner``), an ``App``, or an agent or ``Workflow``.
        engine: the server behind ``LiteLlm`` and OpenAI's models (``vllm``, ``sglang``, ...): its requests then ask for
            token ids and logprobs, see ``rollout_trace.wrap_openai``. None adds nothing to requests, and clients
            wrapped before keep their settings. An ``rollout_trace.Engine`` asks for more than ids and logprobs.
        keep_bytes: keep request and response bodies on the steps.

    Raises:
        TypeError: ``recorded`` is none of these.
        ValueError: the engine is unknown.
    """
    settings = Settings(check_engine(engine), keep_bytes)
    if isinstance(recorded, App):
        set_on(recorded.root_agent, settings)
    elif isinstance(recorded, (Runner, BaseNode)):
        set_on(recorded, settings)
    else:
        raise TypeError(f"record() needs a Runner, an App, an agent or a Workflow of ADK, got {recorded!r:.80}.")
    install()
    return recorded


class RolloutPlugin(BasePlugin):
    """Records every run of the runner that has this plugin: ``App(plugins=[RolloutPlugin(engine="vllm")])``.

    It has no callbacks, so its position among other plugins does not matter. The arguments are those of ``record``.

    Raises:
        ValueError: the engine is unknown.
    """

    def __init__(self, *, engine: str | Engine | None = None, keep_bytes: bool = False) -> None:
        super().__init__("rollout_trace")
        set_on(self, Settings(check_engine(engine), keep_bytes))
        install()
