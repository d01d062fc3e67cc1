"""`rollout_trace.integration`: what it offers, what it costs to import, and what it does beside recording."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace import frames, installed, integration
from rollout_trace.integration import check_engine, is_recorded, lazy_package, report_failure

ROOT = Path(__file__).parent.parent
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
    assert set(integration.__all__) - used == {"framework_missing"}


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
    assert done.stdout == "['_field_docs', '_lazy', '_version', 'guard', 'integration'] False False\n"


@pytest.fixture
def lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package of an integration, whose framework is missing."""
    package = tmp_path / "rollout_trace_lazy"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from rollout_trace.integration import About, lazy_package\n"
        "ABOUT = About(framework='no-such-framework', tested=('1.0', '1.4'))\n"
        "__getattr__, __dir__ = lazy_package(__name__, {'plain': ('number',), 'hooks': ('record',)}, ABOUT)\n"
        "__all__ = ['number', 'record']\n"
    )
    (package / "plain.py").write_text("number = 7\n")
    (package / "hooks.py").write_text("import no_such_framework\ndef record(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import rollout_trace_lazy  # type: ignore[import-not-found]

    yield rollout_trace_lazy
    for name in [name for name in sys.modules if name.startswith("rollout_trace_lazy")]:
        del sys.modules[name]


def test_a_lazy_package_imports_a_name_when_it_is_used(lazy: Any) -> None:
    assert dir(lazy) == ["number", "record"]
    assert "number" not in vars(lazy)
    assert (lazy.number, vars(lazy)["number"]) == (7, 7)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lazy.nothing  # noqa: B018


def test_a_lazy_package_names_what_to_install(lazy: Any) -> None:
    with pytest.raises(ImportError, match="rollout-trace-lazy needs no-such-framework, which cannot be imported") as e:
        lazy.record  # noqa: B018
    assert isinstance(e.value.__cause__, ModuleNotFoundError)
    assert lazy_package("rollout_trace_lazy", {}, lazy.ABOUT)[1]() == ["number", "record"]


def test_a_client_that_is_recorded() -> None:
    from openai import OpenAI

    with OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none") as client:
        assert (is_recorded(client), is_recorded(None), is_recorded(3)) == (False, False, False)
        assert is_recorded(rt.wrap_openai(client))
        assert not is_recorded(rt.unwrap(client))


def test_the_name_of_an_engine_is_checked() -> None:
    assert (check_engine("vllm"), check_engine(None)) == ("vllm", None)
    with pytest.raises(ValueError, match=r"engine='vlm' is not known; known: .*vllm"):
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
