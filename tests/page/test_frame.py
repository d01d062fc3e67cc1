"""What every view has: text made visible, theme, help, errors, the look at whether files changed."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from tests.page.conftest import NARROW, Show, assert_accessible
from tests.page.pretend import made_up

SHOWN = "(texts) => texts.map(text)"


def test_what_cannot_be_seen_is_made_visible(show: Show) -> None:
    page, _ = show([])
    pairs = {
        "plain\ttext\nin lines": "plain\ttext\nin lines",
        "\x1b[31mred": "\\x1b[31mred",
        "a\u202egnp.exe": "a\\u202egnp.exe",
        "zero\u200bwidth\ufeff": "zero\\u200bwidth\\ufeff",
        "soft\u00adhyphen": "soft\\xadhyphen",
        "\u2066isolate\u2069": "\\u2066isolate\\u2069",
        "tag\U000e0041": "tag\\U000e0041",
        "line\u2028end": "line\\u2028end",
        "filler\u3164": "filler\\u3164",
        "\x7f\x85\r": "\\x7f\\x85\\x0d",
        "👩\u200d💻 ❤\ufe0f": "👩\u200d💻 ❤\ufe0f",
        "a\u200db": "a\\u200db",
        "<b>&amp;": "<b>&amp;",
    }
    assert page.evaluate(SHOWN, list(pairs)) == list(pairs.values())
    # A lone surrogate cannot be handed to the browser: it is made there.
    assert page.evaluate("text('a' + String.fromCharCode(0xd800) + 'b')") == "a\\ud800b"
    assert page.evaluate("text(text('\\u202e'))") == "\\u202e"


def test_every_unseen_character_is_made_visible(show: Show) -> None:
    page, _ = show([])
    kept = page.evaluate(
        "Array.from({length: 0x110000}, (_, i) => i)"
        ".filter((i) => text(String.fromCodePoint(i)) === String.fromCodePoint(i))"
    )
    unseen = [chr(i) for i in kept if unicodedata.category(chr(i)) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert unseen == ["\t", "\n"]
    assert len(kept) > 1_000_000


def test_numbers(show: Show) -> None:
    wanted = {
        "count(1204)": "1,204", "count(null)": "-", "count(0)": "0",
        "short(999)": "999", "short(1000)": "1.0k", "short(12345)": "12.3k", "short(999999)": "1.0M",
        "number(0.1 + 0.2)": "0.3", "number(-3.0771)": "-3.077", "number(1e-9)": "1.00e-9", "number(NaN)": "-",
        "duration(0.0008)": "0.8 ms", "duration(0.41)": "0.41 s", "duration(59.96)": "1 m 00 s",
        "duration(3599.9)": "1 h 00 m", "duration(125)": "2 m 05 s", "duration(undefined)": "-",
        "cost(0.0004)": "$0.00040", "cost(12.3)": "$12.30", "cost(0)": "$0.00", "cost(1, 'EUR')": "1.00 EUR",
        "time(0)": "1970-01-01 00:00:00", "plural(1, 'step')": "1 step", "plural(2, 'x', 'xes')": "2 xes",
    }  # fmt: skip
    assert dict(zip(wanted, show([])[0].evaluate(f"[{', '.join(wanted)}]"), strict=True)) == wanted


def test_nodes_take_no_code(show: Show) -> None:
    page, _ = show([])
    for attributes in ("{onclick: 'x()'}", "{href: 'javascript:x()'}", "{href: 'https://elsewhere.invalid'}"):
        with pytest.raises(Exception, match=r"listeners go into|links of the page"):
            page.evaluate(f"el('a', {attributes})")


def test_the_theme_is_changed_and_remembered(show: Show) -> None:
    page, _ = show(made_up(3))
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="light or dark").click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    page.get_by_role("link", name="solver").first.wait_for()
    assert page.evaluate(background) == dark
    page.keyboard.press("D")
    assert page.evaluate(background) == light


def test_the_system_s_theme_is_used(show: Show) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    assert len({show([], scheme=scheme)[0].evaluate(background) for scheme in ("light", "dark")}) == 2


def test_help_lists_keys_and_the_search_language(show: Show) -> None:
    page, _ = show(made_up(3))
    page.get_by_role("link", name="solver").first.wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("clear the filter").wait_for()
    dialog.get_by_text("rewards.correct == 1").wait_for()
    assert_accessible(page)
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


def test_an_unknown_place_is_said_in_words(show: Show) -> None:
    page, _ = show(made_up(3), "#/nowhere/1")
    page.get_by_text('there is no view "nowhere"').wait_for()
    page.get_by_role("button", name="Back to the list").click()
    page.get_by_role("link", name="solver").first.wait_for()


def test_a_server_that_refuses_is_said_and_asked_again(show: Show, pages: Any) -> None:
    page, server = show(made_up(3))
    page.get_by_role("link", name="solver").first.wait_for()
    server.failing = "the file was replaced"
    page.get_by_text("the file was replaced").wait_for()
    page.get_by_role("link", name="solver").first.wait_for()  # What was shown is still there.
    server.failing = None
    page.locator("#banner:empty").wait_for(state="attached")
    pages.expect_error("500")


def test_a_list_that_cannot_be_loaded_is_an_error_with_a_way_on(show: Show, pages: Any) -> None:
    page, server = show(made_up(3), "#/nowhere")
    page.get_by_role("button", name="Back to the list").wait_for()
    server.failing = "no room for the index in /cache"
    page.get_by_role("button", name="Back to the list").click()
    page.get_by_role("alert").get_by_text("no room for the index in /cache").wait_for()
    server.failing = None
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("link", name="solver").first.wait_for()
    pages.expect_error("500")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_content_is_reached_past_the_bar(show: Show, scheme: str) -> None:
    page, _ = show(made_up(3), size=NARROW, scheme=scheme)
    page.get_by_role("link", name="solver").first.wait_for()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.url.endswith("/")
