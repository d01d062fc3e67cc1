"""One order of imports and of ``rt.instrument()``, in an interpreter of its own. Prints what was recorded of a call."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import threading
from types import ModuleType
from typing import Any

import rollout_trace as rt

URL = os.environ.get("SERVER", "")


def sdk() -> ModuleType:
    return importlib.import_module("openai")


def client() -> Any:
    return sdk().OpenAI(base_url=URL, api_key="none", max_retries=0)


def before() -> Any:
    rt.instrument(engine="vllm")
    return client()


def after() -> Any:
    sdk()
    rt.instrument(engine="vllm")
    return client()


def client_before() -> Any:
    made = client()
    rt.instrument(engine="vllm")
    return made


def twice() -> Any:
    rt.instrument(engine="vllm")
    made = client()
    rt.instrument(engine="vllm")
    return made


def in_another_thread() -> Any:
    """The import runs in a thread while ``instrument`` is called."""
    begun, go_on = threading.Event(), threading.Event()
    real = builtins.__import__

    def paused(name: str, *args: Any, **kwargs: Any) -> Any:
        # Not in a finder: one is asked under a lock that `instrument` needs.
        if name == "_base_client":
            begun.set()
            go_on.wait()
        return real(name, *args, **kwargs)

    builtins.__import__ = paused
    importing = threading.Thread(target=sdk)
    importing.start()
    begun.wait()
    rt.instrument(engine="vllm")
    go_on.set()
    importing.join()
    builtins.__import__ = real
    return client()


def half_executed() -> Any:
    """``instrument`` runs while ``openai._base_client`` does: the finder was asked before it was there."""
    done: list[bool] = []

    class Instrument:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            base = sys.modules.get("openai._base_client")
            if base is not None and not done and not hasattr(base, "SyncAPIClient"):
                done.append(True)
                rt.instrument(engine="vllm")

    sys.meta_path.insert(0, Instrument())
    sdk()
    assert done
    return client()


def finder_in_front() -> Any:
    """As pytest's rewriter of assertions, and profilers of imports, are."""

    class InFront:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if name != "openai._base_client":
                return None
            rest = [
                finder for finder in sys.meta_path if finder is not self and "rollout" not in type(finder).__module__
            ]
            return next(spec for finder in rest if (spec := finder.find_spec(name, path, target)) is not None)

    rt.instrument(engine="vllm")
    sys.meta_path.insert(0, InFront())
    return client()


def finder_thrown_out() -> Any:
    rt.instrument(engine="vllm")
    sys.meta_path[:] = [finder for finder in sys.meta_path if "rollout" not in type(finder).__module__]
    return client()


def reloaded() -> Any:
    rt.instrument(engine="vllm")
    sdk()
    importlib.reload(sys.modules["openai._base_client"])
    importlib.reload(sys.modules["openai._client"])
    importlib.reload(sys.modules["openai"])
    return client()


def imported_again() -> Any:
    rt.instrument(engine="vllm")
    client()
    for name in [name for name in sys.modules if name.partition(".")[0] == "openai"]:
        del sys.modules[name]
    return client()


def main() -> None:
    made = globals()[sys.argv[1]]()
    with rt.trajectory() as trajectory:
        made.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    base = sys.modules["openai._base_client"]
    # What debuggers and `inspect` look at is as it was.
    assert type(base.__spec__.loader).__name__ == "SourceFileLoader"  # type: ignore[union-attr]
    assert not vars(base.__spec__.loader).get("exec_module")  # type: ignore[union-attr]
    print([(step.protocol, step.status, len(step.attempts)) for step in trajectory.steps], type(made).__name__)


if __name__ == "__main__":
    main()
