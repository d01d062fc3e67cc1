"""A browser, and pages in it that must not report an error."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rollout_trace.view.model import Summary
from tests.page.pretend import ADDRESS, Pretend

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: make test-page installs it"
)

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE = (1400, 900)
NARROW = (400, 860)


def browser_path() -> str | None:
    """Of the browser that the tests run in; None: there is none."""
    named = os.environ.get("ROLLOUT_TRACE_BROWSER")
    return named or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = browser_path()
    if path is None:
        pytest.skip("no chromium: install Debian's package, or name a browser in ROLLOUT_TRACE_BROWSER")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield started
        started.close()


class Pages:
    """Makes pages, and keeps what they reported: errors of scripts, of the console, of the content policy, and requests
    that lead elsewhere."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.contexts: list[Any] = []
        self.errors: list[str] = []

    def new(self, size: tuple[int, int] = WIDE, scheme: str = "light", own: str = ADDRESS, **options: Any) -> Any:
        """An empty page.

        Args:
            size: width and height in CSS pixels.
            scheme: ``light`` or ``dark``.
            own: what every address must begin with that the page asks for.
            options: of ``Browser.new_context``.
        """
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce",
            timezone_id="UTC", locale="en-US", **options,
        )  # fmt: skip
        context.set_default_timeout(10_000)
        self.contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self._foreign(request.url, own))
        return page

    def _foreign(self, url: str, own: str) -> None:
        if not url.startswith((own, "data:", "blob:", "about:")):
            self.errors.append(f"asked for {url}")

    def expect_error(self, pattern: str) -> None:
        """That such an error was reported; it does not count any more."""
        found = [error for error in self.errors if re.search(pattern, error)]
        assert found, self.errors
        self.errors = [error for error in self.errors if error not in found]


@pytest.fixture
def pages(browser: Any, serve: object) -> Iterator[Pages]:
    # After `serve`, so that pages close before their servers end: they would report that they are gone.
    made = Pages(browser)
    yield made
    for context in made.contexts:
        context.close()
    assert made.errors == []


@pytest.fixture
def page(pages: Pages) -> Any:
    """An empty page of 1400 pixels in light colours."""
    return pages.new()


Show = Callable[..., tuple[Any, Pretend]]


@pytest.fixture
def show(pages: Pages) -> Show:
    """Opens the page with made-up summaries: ``show(summaries, "#/?q=x", size=NARROW)``; gives it and its server."""

    def shown(summaries: list[Summary], place: str = "", **options: Any) -> tuple[Any, Pretend]:
        page = pages.new(**options)
        pretend = Pretend(summaries)
        page.route(f"{ADDRESS}**", pretend)
        page.goto(ADDRESS + place)
        return page, pretend

    return shown


def picture(page: Any, name: str, **options: Any) -> None:
    """Keeps a screenshot in the folder that ROLLOUT_TRACE_SCREENSHOTS names, if it is set."""
    folder = os.environ.get("ROLLOUT_TRACE_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"), **options)


def assert_accessible_in_both_themes(page: Any, name: str) -> None:
    """The same in light and in dark colours, with a picture of each."""
    for scheme, options in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        picture(page, f"{name}-{scheme}")
        assert_accessible(page, options)


def assert_accessible(page: Any, options: dict[str, Any] | None = None) -> None:
    """That axe finds no serious or critical fault. ``options``: its own."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    violations = axe.Axe().run(page, options=options).response["violations"]
    serious = [
        f"{one['id']} ({one['impact']}): {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in violations
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


class Served(NamedTuple):
    """The page's server in a process of its own."""

    address: str
    process: subprocess.Popen[str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts ``rollout-trace view`` with files, and options: ``serve(path, "--read-only")``."""
    started: list[subprocess.Popen[str]] = []

    def served(*arguments: str | Path) -> Served:
        command = [sys.executable, "-W", "error", "-m", "rollout_trace", "view", "--no-open", "--json"]
        process = subprocess.Popen(
            [*command, "--cache", str(tmp_path / "cache"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return Served(json.loads(process.stdout.readline())["address"], process)

    yield served
    for process in started:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
        assert process.stdout is not None
        process.stdout.close()
