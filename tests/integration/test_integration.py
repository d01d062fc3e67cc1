"""`rollout_trace.integration`: what it offers, what it costs to import, and what it does beside recording."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import frames, installed, integration
from rollout_trace.integration import (
    check_engine,
    is_recorded,
    record_client,
    report_failure,
    snapshot,
)
from rollout_trace.testing import ScriptedServer

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(ROOT.glob("integrations/*/rollout_trace_*"))


def used_in(folder: Path) -> set[str]:
    """The names of the contract that an integration imports."""
    return {
        alias.name
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "rollout_trace.integration"
        for alias in node.names
    }


def test_it_offers_what_the_integrations_use_and_little_else() -> None:
    used = {name for folder in PACKAGES for name in used_in(folder)}
    assert used <= set(integration.__all__)
    assert set(integration.__all__) - used == {"Integration", "framework_missing"}


def test_every_name_is_there_and_documented() -> None:
    assert set(integration.__all__) <= set(dir(integration))
    for name in integration.__all__:
        value = getattr(integration, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert inspect.getdoc(value), name


def test_its_old_paths_have_the_same_names() -> None:
    for name in set(frames.__all__) - {"here"}:
        assert getattr(frames, name) is getattr(integration, name)
    assert (installed.About, installed.framework_missing) == (integration.About, integration.framework_missing)


def test_what_an_entry_point_needs_loads_no_recorder() -> None:
    program = (
        "import sys\n"
        "from rollout_trace.integration import About, lazy_package\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('rollout_trace.')}\n"
        "print(sorted(rooms), 'numpy' in sys.modules, 'msgspec' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == "['_field_docs', '_lazy', '_threads', '_version', 'credentials', 'guard', 'integration'] False False\n"
    )


@pytest.fixture
def lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The package of the documentation, whose framework is missing until somebody writes it."""
    (code,) = re.findall(r"```python\n([^`]*lazy_package\([^`]*)```", (ROOT / "docs" / "integrations.md").read_text())
    package = tmp_path / "rollout_trace_lazy"
    package.mkdir()
    (package / "__init__.py").write_text(code.replace("rollout_trace_yours", "rollout_trace_lazy"))
    about = "from rollout_trace.integration import About\nABOUT = About(framework='lazyframe', tested=('1.0', '1.4'))\n"
    (package / "_about.py").write_text(about)
    (package / "hooks.py").write_text("import lazyframe\ndef record(): return lazyframe.version\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("rollout_trace_lazy")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rollout_trace_lazy", "lazyframe")]:
        del sys.modules[name]


def test_a_lazy_package_imports_a_name_when_it_is_used(lazy: Any, tmp_path: Path) -> None:
    (tmp_path / "lazyframe.py").write_text("version = '1.3'\n")
    assert dir(lazy) == ["record"]
    assert "record" not in vars(lazy)
    assert lazy.record() == "1.3"
    assert "record" in vars(lazy)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lazy.nothing  # noqa: B018


def test_a_lazy_package_names_what_to_install(lazy: Any) -> None:
    with pytest.raises(ImportError, match="rollout-trace-lazy needs lazyframe, which cannot be imported") as raised:
        lazy.record  # noqa: B018
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_a_client_that_is_recorded() -> None:
    from openai import OpenAI

    with OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none") as client:
        assert (is_recorded(client), is_recorded(None), is_recorded(3)) == (False, False, False)
        assert is_recorded(rt.wrap_openai(client))
        assert not is_recorded(rt.unwrap(client))


def test_a_client_made_before_is_left_to_the_process() -> None:
    """Wrapped without an engine, it would be asked for none of what the process asks for."""
    from openai import OpenAI

    with ScriptedServer("Hi") as server, OpenAI(base_url=server.base_url, api_key="none") as client:
        kind = type(client)
        with rt.instrument(engine="vllm"), rt.trajectory() as trajectory:
            assert record_client(client)
            assert (type(client), is_recorded(client), is_recorded(client, by_hand=True)) == (kind, True, False)
            assert (is_recorded(None), is_recorded("client")) == (False, False)
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        assert trajectory.steps[0].completion_token_ids is not None
        assert (type(client), is_recorded(client)) == (kind, False)


def test_a_client_that_is_recorded_because_the_process_is() -> None:
    from openai import OpenAI

    with rt.instrument(), OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none") as client:
        assert (is_recorded(client), is_recorded(client, by_hand=True)) == (True, False)
        assert is_recorded(rt.wrap_openai(client), by_hand=True)


def test_the_name_of_an_engine_is_checked() -> None:
    assert (check_engine("vllm"), check_engine(None)) == ("vllm", None)
    with pytest.raises(ValueError, match=r"engine='vlm' is not known. Did you mean vllm"):
        check_engine("vlm")


def test_a_reported_failure_is_logged_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError):
        report_failure("close", ZeroDivisionError("x"))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    before = rt.stats().recorder_errors
    for _ in range(2):
        report_failure("close", ZeroDivisionError("x"))
    assert rt.stats().recorder_errors == before + 2
    assert caplog.messages == ["recording failed in close: ZeroDivisionError: x; the agent goes on"]


def test_a_client_keeps_its_settings_until_an_engine_is_given() -> None:
    from openai import OpenAI

    with OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none") as client:
        assert record_client(client)
        assert is_recorded(client, by_hand=True)
        mine = type(rt.wrap_openai(client, engine="sglang", keep_bytes=True))
        assert record_client(client)
        assert type(client) is mine
        assert record_client(client, engine="vllm")
        vllm = type(client)
        assert vllm is not mine
        assert record_client(client, engine="vllm")
        assert type(client) is vllm
        assert (record_client(None), record_client("client"), record_client(object())) == (False, False, False)


def test_an_engine_replaces_the_settings_of_the_process() -> None:
    from openai import OpenAI

    with rt.instrument(), OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none") as client:
        assert record_client(client)
        assert not is_recorded(client, by_hand=True)
        assert record_client(client, engine="vllm")
        assert is_recorded(client, by_hand=True)


def test_clients_of_other_sdks_are_recorded_without_an_engine() -> None:
    from anthropic import Anthropic

    with Anthropic(base_url="http://127.0.0.1:9", api_key="none") as client:
        assert record_client(client, engine="vllm")
        assert is_recorded(client, by_hand=True)
    genai = pytest.importorskip("google.genai")
    google = genai.Client(api_key="none")
    assert record_client(google)
    assert record_client(google)
    rt.unwrap(google)
    google.close()


class Unshowable:
    """Its ``repr`` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_snapshot_is_a_copy_of_what_json_can_hold() -> None:
    import enum
    from dataclasses import dataclass
    from pathlib import Path as AnyPath

    import numpy as np

    @dataclass
    class Point:
        x: int
        y: Any

    class Color(str, enum.Enum):
        RED = "red"

    value = {"a": [1, (2, Point(3, np.float32(0.5)))], 4: Color.RED, "p": AnyPath("x"), "n": None}
    copied = snapshot(value)
    value["a"].append(5)  # type: ignore[attr-defined]
    assert copied == {"a": [1, [2, {"x": 3, "y": 0.5}]], "4": "red", "p": "x", "n": None}
    assert snapshot(np.arange(2)) == [0, 1]
    assert snapshot(Unshowable()) == "<Unshowable: its repr() raised RuntimeError>"
    endless: list[Any] = []
    endless.append(endless)
    assert snapshot(endless) == ["[[...]]"]


def test_a_snapshot_of_what_contains_itself_twice_is_small() -> None:
    """Followed to a depth, each level would double it."""
    twice: dict[str, Any] = {}
    twice |= {"a": twice, "b": [twice, twice]}
    assert snapshot(twice) == {"a": repr(twice), "b": [repr(twice), repr(twice)]}
    shared = [1]
    assert snapshot([shared, shared]) == [[1], [1]]


def test_a_snapshot_loses_no_item_of_equal_keys(caplog: pytest.LogCaptureFixture) -> None:
    assert snapshot({1: "number", "1": "text"}) == {"1": "number", "1 (str)": "text"}
    assert "two keys of a mapping are both '1'" in caplog.text


def test_the_recording_of_a_context_is_found_and_set(tmp_path: Path) -> None:
    from rollout_trace.integration import recording, recording_here, set_current_recording

    assert recording_here() is None
    ours = recording(tmp_path / "ours.jsonl")
    with ours:
        assert recording_here() is ours
        with rt.recording(tmp_path / "theirs.jsonl"):
            assert recording_here() is not ours
            set_current_recording(ours)
            with rt.trajectory("ours"):
                pass
    assert recording_here() is None
    assert [one.name for one in rt.read(tmp_path / "ours.jsonl")] == ["ours"]
