"""The documentation site, built: every page in a browser, links, the API entries of all public names, the search."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.page.conftest import NARROW, WIDE, Pages, assert_accessible, picture
from tests.page.site import LOADED, Site, build, public_names, serving

OUTSIDE = """() => [...document.querySelectorAll('.md-content *, .md-footer *')].filter((one) => {
  const box = one.getBoundingClientRect();
  if (box.right <= innerWidth + 1 || !box.width || !one.checkVisibility({visibilityProperty: true})) return false;
  for (let outer = one.parentElement; outer; outer = outer.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(outer).overflowX)
        && outer.getBoundingClientRect().right <= innerWidth + 1) return false;
  return true;
}).slice(0, 3).map((one) => one.outerHTML.slice(0, 200))"""
"""Elements that reach beyond the right edge of the window, save those that a box around them scrolls. The theme cuts
them off: the page itself never scrolls sideways."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("built") / "site"
    build(folder)
    return Site(folder)


@pytest.fixture(scope="session")
def address(site: Site) -> Iterator[str]:
    with serving(site.folder) as address:
        yield address


def test_no_link_is_broken(site: Site) -> None:
    broken = {f"{page}: {link.address}" for page, one in site.documents.items() for link in one.links
              if site.broken(page, link)}  # fmt: skip
    assert broken == set()
    assert len(site.pages) > 40


def test_nothing_is_loaded_from_another_host(site: Site) -> None:
    loaded = {link for one in site.documents.values() for link in one.links if link[:2] in LOADED}
    assert len(loaded) > 10
    assert {link for link in loaded if urlsplit(link.address).netloc} == set()
    sheets = "".join(path.read_text() for path in site.folder.rglob("*.css"))
    addresses = re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", sheets)
    assert addresses
    assert {address for address in addresses if not address.startswith("data:") and urlsplit(address).netloc} == set()
    # The theme's script loads one of these where a page has such a drawing, and asks the other about a repository.
    scripts = "".join(path.read_text() for path in site.folder.glob("assets/javascripts/*.js"))
    assert set(re.findall(r"https?://([\w.-]+)", scripts)) <= {"unpkg.com", "api.github.com", "clipboardjs.com"}
    assert [name for name, one in site.documents.items() if one.classes & {"mermaid", "md-source"}] == []


def test_every_public_name_has_an_entry_that_the_search_finds(site: Site) -> None:
    entries = site.entries()
    titles = {entry["location"]: entry["title"] for entry in site.search_index()["docs"]}
    for name in public_names():
        page, _, anchor = entries[name].partition("#")
        assert anchor in site.documents[page].ids
        assert titles[entries[name]].strip() == name.rpartition(".")[2]


def test_every_field_of_a_public_record_has_an_entry(site: Site) -> None:
    entries = site.entries()
    kinds = {
        kind for name in public_names() if isinstance(kind := _named(name), type) and dataclasses.is_dataclass(kind)
    }
    fields = [f"{kind.__module__}.{kind.__qualname__}.{field.name}" for kind in kinds
              for field in dataclasses.fields(kind) if not field.name.startswith("_")]  # fmt: skip
    assert len(fields) > 300
    assert [name for name in fields if name not in entries] == []


def _named(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def test_pages_of_files_outside_of_docs(site: Site) -> None:
    assert {"changelog/", "contributing/"} <= set(site.pages)
    leads = {link.address for link in site.documents["contributing/"].links if link.tag == "a"}
    assert "../engines/" in leads, "docs/engines.md in the text is a link"
    name = {link.address for link in site.documents["changelog/"].links}
    assert "../api/record/#rollout_trace.wrap_vllm" in name, "rt.wrap_vllm(llm) in the text is a link"


def test_every_page_in_a_browser(site: Site, address: str, pages: Pages) -> None:
    """Wide and light, and narrow and dark: what reaches outside does not depend on colours."""
    page = pages.new(own=address)
    # Each page would build the index of the search anew, which other tests look at.
    index = {**site.search_index(), "docs": []}
    page.route("**/search_index.json", lambda route: route.fulfill(json=index))
    outside: dict[str, list[str]] = {}
    looks = [(WIDE, "light", "default"), (NARROW, "dark", "slate")]
    for name in site.pages:
        # Opened as the page before it was left: each is laid out twice, and not three times.
        page.goto(address + name)
        for (width, height), scheme, palette in looks:
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)
            # By then the theme's scripts have put tables into boxes that scroll.
            page.wait_for_selector(f'html.js body[data-md-color-scheme="{palette}"]')
            picture(page, f"site-{name.strip('/').replace('/', '-') or 'index'}-{scheme}")
            if found := page.evaluate(OUTSIDE):
                outside[f"{name} at {width}"] = found
        looks.reverse()
    assert outside == {}


@pytest.mark.parametrize("name", ["", "look/", "api/errors/"])
def test_pages_are_readable(address: str, pages: Pages, name: str) -> None:
    page = pages.new(own=address)
    page.goto(address + name)
    # The theme gives its search the role of a dialog, and no name.
    options = {"rules": {"aria-dialog-name": {"enabled": False}}}
    for scheme, palette in (("light", "default"), ("dark", "slate")):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_selector(f'body[data-md-color-scheme="{palette}"]')
        assert_accessible(page, options)


def test_light_and_dark_can_be_chosen(address: str, pages: Pages) -> None:
    page = pages.new(own=address, scheme="dark")
    page.goto(address)
    schemes = []
    for _ in range(3):
        schemes.append(page.locator("body").get_attribute("data-md-color-scheme"))
        page.locator("form.md-header__option label:visible").click()
    assert schemes == ["slate", "default", "slate"]


def test_the_search_finds_names_fields_and_words(address: str, pages: Pages) -> None:
    page = pages.new(own=address)
    page.goto(address)
    names = ["Step", "recording", "wrap_openai", "read", "collect", "WriteError", "wire.decode", "export.trl",
             "export.write", "importing.claude_code", "testing.when", "testing.ScriptedServer",
             "integration.ModelFrame", "Step.logprobs"]  # fmt: skip
    anchors = {name: f"rollout_trace.{name}" for name in names}
    for words, anchor in {**anchors, "drift": "drift", "object storage": "addresses"}.items():
        field = page.locator("input.md-search__input")
        field.fill(words.rpartition(".")[2] if words[0].islower() else words)
        # The page looks at what was typed when a key is let go.
        field.press("End")
        page.locator(f'.md-search-result__link[href$="#{anchor}"]').first.wait_for(state="attached")
