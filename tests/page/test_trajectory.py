"""The view of a trajectory: what it shows, its addresses, its keys, its form."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

import rollout_trace as rt
from rollout_trace.view.model import FindingView, Message, Part
from rollout_trace.view.trajectory_view import TrajectoryView
from tests.page.conftest import NARROW, WIDE, Pages, assert_accessible_in_both_themes
from tests.page.solver import child, solver
from tests.page.trajectories import One, long, opened
from tests.view import build

HOSTILE = "<script>alert(1)</script></script><img src=x onerror=alert(2)> \u202e gnp.exe \u200b \x1b[31m \x00 &amp; end"
SHOWN = r"<script>alert(1)</script></script><img src=x onerror=alert(2)> \u202e gnp.exe \u200b \x1b[31m \x00 &amp; end"


def group() -> list[One]:
    return [solver(2), solver(1, "The answer is 98, I am sure."), child(2)]


def ready(page: Any) -> Any:
    page.wait_for_selector(".step .answer .meta")
    page.wait_for_selector(".part.call")
    return page


def texts(page: Any, selector: str) -> list[str]:
    return [one.strip() for one in page.locator(selector).all_inner_texts()]


def test_a_trajectory_is_shown_as_a_conversation(pages: Pages) -> None:
    page, _ = opened(pages, group())
    ready(page)
    assert page.locator("h1").first.inner_text() == "solver chain/1 · rollout 2"
    assert "reward 1 · completed · 4 steps · 260 read" in page.locator(".sub").inner_text()
    assert texts(page, ".msg > header > b") == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert "I should multiply" in page.locator(".part.reasoning").inner_text()
    call = page.locator(".part.call").first
    assert call.locator("b").inner_text() == "calculator"
    call.locator("summary").click()
    assert call.locator("pre").inner_text() == "84"
    assert texts(page, ".msg.tool .meta")[0] == "calculator · 30 ms"
    assert page.locator("img.part").get_attribute("src").startswith("data:image/png")
    assert page.title().startswith("solver")


def test_drift_findings_attempts_children_threads_and_left_out_steps_are_at_their_places(pages: Pages) -> None:
    page, _ = opened(pages, group())
    ready(page)
    drift = page.locator('[data-step="2"] .drift')
    assert "Drift at token 117 of the prompt: retokenized" in drift.inner_text()
    assert texts(page, ".drift .ids") == ["[27, 83, 1616]", "[2042]"]
    assert "constrained_sampling" in page.locator('[data-step="1"] .finding').inner_text()
    assert texts(page, '[data-step="2"] .attempts li') == [
        "status 429 · 40 ms · Too Many Requests",
        "status 200 · 0.33 s",
    ]
    left_out = page.locator('section[data-step="3"]')
    assert "left-out" in (left_out.get_attribute("class") or "")
    assert "not trained: status" in left_out.inner_text()
    assert "conversation 1" in left_out.locator(".seam").inner_text()
    assert "APITimeoutError" in left_out.inner_text()
    assert "not in these files" in page.locator(".child").nth(1).inner_text()
    page.locator(".child a").click()
    page.wait_for_url("**#/t/0-2")
    page.wait_for_selector("h1:has-text('checker')")
    assert page.locator('.left [aria-current="page"]').inner_text().split() == ["checker", "0.5"]


def test_rows_and_time_lead_to_steps(pages: Pages) -> None:
    page, _ = opened(pages, group(), "#/t/0-0?pane=rows")
    ready(page)
    assert texts(page, ".row header") == [
        "Row 0 124 tokens · 81 trained (65%) · reward 1",
        "Row 1 155 tokens · 15 trained (10%) · reward 1",
    ]
    page.locator(".row").nth(1).locator("button.m1").click()
    assert page.evaluate("location.hash") == "#/t/0-0?step=2"
    assert page.locator(".pane").is_hidden()
    page.click("text=Time >> nth=0")
    page.wait_for_selector(".pane .bar.attempt")
    assert texts(page, ".pane .lane-name") == ["sub-agents", "calls", "attempts", "tools"]
    page.locator(".pane .bar.call").nth(1).click()
    assert page.evaluate("location.hash") == "#/t/0-0?step=1"
    assert "selected" in (page.locator('section[data-step="1"]').get_attribute("class") or "")


def test_raw_requests_are_loaded_on_a_click_alone(pages: Pages) -> None:
    page, served = opened(pages, group())
    ready(page)
    assert "raw" not in [name for name, _ in served.asked]
    page.click('button:has-text("Raw")')
    page.wait_for_selector(".pane pre")
    # Numbers that JavaScript has no room for are as they were sent.
    assert page.locator(".pane pre").inner_text() == '{\n  "model": "Qwen/Qwen3-8B",\n  "seed": 12345678901234567890\n}'


def test_an_address_opens_the_same_place(pages: Pages) -> None:
    place = "#/t/0-0?step=1&token=4&color=entropy&reasoning=0"
    page, _ = opened(pages, group(), place)
    ready(page)
    page.wait_for_selector(".t.pinned")
    assert page.locator('.segments [data-value="entropy"]').get_attribute("aria-pressed") == "true"
    assert "Token 4 of step 1 (kept)" in page.locator(".right h2").first.inner_text()
    assert page.locator(".part.reasoning").is_hidden()
    assert page.locator(".reasoning-stub").is_visible()
    page.keyboard.press("r")
    assert page.locator(".part.reasoning").is_visible()
    assert page.evaluate("location.hash") == "#/t/0-0?step=1&token=4&color=entropy"


def test_a_step_that_is_not_there_is_said(pages: Pages) -> None:
    page, _ = opened(pages, group(), "#/t/0-0?step=99")
    ready(page)
    assert "no step 99" in page.locator("#banner").inner_text()


def test_keys(pages: Pages) -> None:
    page, _ = opened(pages, group(), "#/?sort=index")
    page.wait_for_selector("#main *")
    page.evaluate("location.hash = '#/t/0-0'")
    ready(page)
    for key, place in (("j", "step=0"), ("j", "step=1"), ("k", "step=0")):
        page.keyboard.press(key)
        assert page.evaluate("location.hash") == f"#/t/0-0?{place}"
    page.keyboard.press("t")
    assert page.evaluate("location.hash").endswith("color=entropy")
    page.keyboard.press("o")
    assert page.locator(".part.call").first.is_hidden()
    assert page.locator(".tools-stub").first.is_visible()
    page.keyboard.press("p")
    page.wait_for_url("**#/t/0-1")
    page.wait_for_selector("h1:has-text('rollout 1')")
    page.keyboard.press("p")
    page.wait_for_selector("#banner:has-text('first trajectory')")
    page.keyboard.press("?")
    assert "next trajectory of the list" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_url("**#/?sort=index")


def test_reward_and_note_are_saved(pages: Pages) -> None:
    page, served = opened(pages, group())
    ready(page)
    page.keyboard.press("e")
    page.fill('input[name="reward"]', "a lot")
    page.click("text=Save")
    assert page.locator(".problem").inner_text() == 'The reward is a number such as 0.5; "a lot" is none.'
    page.fill('input[name="reward"]', "0.25")
    page.fill('textarea[name="rewards"]', "correct = 1\nformat = 0.5")
    page.fill('textarea[name="note"]', "looked at")
    served.refuses["annotate"] = "The file's folder cannot be written."
    page.click("text=Save")
    page.wait_for_selector(".problem:has-text('cannot be written')")
    del served.refuses["annotate"]
    page.click("text=Save")
    page.wait_for_selector("form.edit", state="detached")
    assert served.saved == [
        {"key": "0-0", "values": {"reward": 0.25, "rewards": {"format": 0.5}, "metadata": {"note": "looked at"}}}
    ]
    assert "reward 0.25" in page.locator(".sub").inner_text()
    pages.expect_error("403")


def test_nothing_is_edited_where_nothing_can_be_written(pages: Pages) -> None:
    page, _ = opened(pages, group(), writable=False)
    ready(page)
    assert page.locator(".edit-open").count() == 0
    page.keyboard.press("e")
    assert "Nothing can be written" in page.locator("#banner").inner_text()


def test_a_search_marks_the_steps_that_have_the_text(pages: Pages) -> None:
    page, _ = opened(pages, group())
    ready(page)
    page.keyboard.press("/")
    page.keyboard.type("TOO MANY")
    page.keyboard.press("Enter")
    page.wait_for_selector(".find:has-text('in no step')")
    page.fill(".find input", "twice")
    page.keyboard.press("Enter")
    page.wait_for_selector(".find:has-text('1 of 1 step')")
    assert page.evaluate("location.hash") == "#/t/0-0?step=2"
    assert page.evaluate("[...CSS.highlights.get('found')].map(String)") == ["twice"]


def test_of_a_text_of_a_megabyte_the_beginning_is_shown_and_the_rest_on_a_click(pages: Pages) -> None:
    one = solver(2)
    one.steps[0].new = [Message(role="user", parts=[Part(kind="text", text="0123456789" * 100_000)])]
    page, _ = opened(pages, [one])
    ready(page)
    body = page.locator(".msg.user .body")
    assert len(body.inner_text()) < 5_000
    assert "996,000 of 1,000,000 characters are not shown" in body.locator("button").inner_text()
    body.locator("button").click()
    assert "896,000 of 1,000,000" in body.locator("button").inner_text()
    assert len(body.inner_text()) > 104_000


def test_a_changed_file_is_shown_anew(pages: Pages) -> None:
    ones = group()
    page, served = opened(pages, ones)
    ready(page)
    summary = msgspec.structs.replace(ones[0].outline.summary, reward=0.125, note="from elsewhere")
    ones[0].outline = msgspec.structs.replace(ones[0].outline, summary=summary)
    served.generation += 1
    page.wait_for_selector(".sub:has-text('reward 0.125')")
    assert "from elsewhere" in page.locator(".note-line").inner_text()


def test_steps_that_cannot_be_loaded_are_said(pages: Pages) -> None:
    page, served = opened(pages, group(), "#/?q=x")
    page.wait_for_selector("#main *")
    served.refuses["steps"] = "The line was cut off."
    page.evaluate("location.hash = '#/t/0-0'")
    page.wait_for_selector('[data-step="0"] .bad:has-text("cut off")')
    pages.expect_error("500")


def test_metadata_of_several_lines_is_text(pages: Pages) -> None:
    """Such as the patch of a coding agent."""
    one = child(2)
    patch = "--- sums.py\n+++ sums.py\n-a - b\n+a + b"
    one.outline = msgspec.structs.replace(one.outline, metadata={"seed": 3, "patch": patch, "tests": ["a\nb"]})
    page, _ = opened(pages, [one])
    fold = page.locator('.fold:has-text("Metadata")')
    fold.locator("summary").click()
    assert fold.locator("h3").all_inner_texts() == ["patch"]
    shown = fold.locator("pre").all_inner_texts()
    assert shown == ['{\n  "seed": 3,\n  "tests": [\n    "a\\nb"\n  ]\n}', patch]


def hostile() -> One:
    one = solver(2)
    one.steps[0].new = [
        Message(
            role=HOSTILE,
            name=HOSTILE,
            parts=[
                Part(kind="text", text=HOSTILE),
                Part(kind="image", text="https://elsewhere.invalid/x.png"),
                Part(kind="image", text="data:image/svg+xml,<svg onload=alert(3)>", name=HOSTILE),
                Part(kind="json", text=HOSTILE),
            ],
        ),
    ]
    one.steps[0].answer = Message(
        role="assistant",
        parts=[Part(kind="text", text=HOSTILE), Part(kind="tool_call", text=HOSTILE, name=HOSTILE, id="x")],
    )
    tokens = one.steps[0].tokens
    assert tokens is not None
    assert tokens.texts is not None
    tokens.texts[:2] = [HOSTILE, "</script>\u202e"]
    one.steps[1].findings[0].message = HOSTILE
    one.steps[2].error = HOSTILE
    summary = msgspec.structs.replace(
        one.outline.summary, name=HOSTILE, task=HOSTILE, note=HOSTILE, error=HOSTILE, rewards={HOSTILE: 1.0}
    )
    one.outline = msgspec.structs.replace(one.outline, summary=summary, metadata={HOSTILE: HOSTILE}, family=[])
    one.raw = {"request": HOSTILE, "response": HOSTILE, "line": None}
    return one


def test_hostile_text_is_text(pages: Pages) -> None:
    page, _ = opened(pages, [hostile()])
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    ready(page)
    assert page.locator(".msg .body").first.inner_text().strip() == SHOWN
    assert page.locator("#main script, #main svg, #main iframe").count() == 0
    assert page.locator("#main img").count() == 0
    assert "not loaded: https://elsewhere.invalid/x.png" in page.locator(".part.media").first.inner_text()
    assert page.locator(".msg .t").first.inner_text() == SHOWN
    page.locator(".msg .t").first.click()
    for pane in ("Rows", "Time", "Raw"):
        page.click(f'.segments button:has-text("{pane}")')
    page.wait_for_selector(".pane pre")
    unseen = re.compile("[\u202e\u200b\x1b\x00]")
    assert not unseen.search(page.content())


def test_a_finding_of_every_step_is_explained_once(pages: Pages) -> None:
    one = long(3)
    for i, step in enumerate(one.steps):
        found = [FindingView(code="odd", grade="warning", message=f"what it means ({i})", step=i)] * 2
        one.outline.findings.extend(found)
        step.findings = found
    page, _ = opened(pages, [one])
    page.locator('[data-step="2"] .finding').first.wait_for()
    assert page.locator(".steps .finding:not(.again)").count() == 1
    assert page.locator(".steps").get_by_text("what it means (0)").first.is_visible()
    assert not page.locator(".steps").get_by_text("what it means (1)").first.is_visible()
    page.locator('[data-step="1"] .finding summary').first.click()
    page.locator(".steps").get_by_text("what it means (1)").first.wait_for()


@pytest.mark.parametrize(("size", "name"), [(WIDE, "wide"), (NARROW, "narrow")])
def test_it_can_be_used_by_everybody(pages: Pages, size: tuple[int, int], name: str) -> None:
    for color in ("logprob", "entropy", "mask"):
        page, _ = opened(pages, group(), f"#/t/0-0?step=0&token=3&color={color}", size=size)
        ready(page)
        page.wait_for_selector(".t.pinned")
        # It fills the window, and scrolls inside.
        assert page.locator(".scroll").bounding_box()["height"] > 400
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert_accessible_in_both_themes(page, f"trajectory-{color}-{name}")
    for pane in ("rows", "time", "raw", "details"):
        page, _ = opened(pages, group(), f"#/t/0-0?pane={pane}", size=size)
        page.wait_for_selector(".left .tree-line", state="attached")
        assert_accessible_in_both_themes(page, f"trajectory-{pane}-{name}")
        # For readers of screens: that of the conversation is behind the pane.
        assert pane == "details" or page.locator(".pane h1").text_content() == f"solver: {pane}"


def test_a_request_that_begins_a_conversation_or_repeats_another_leads_to_what_it_repeats(pages: Pages) -> None:
    system, add = {"role": "system", "content": "Be brief."}, {"type": "function", "function": {"name": "add"}}
    prompts = [[system, build.user("hi")], [system, build.user("And you?")], [system, build.user("hi")]]
    steps = [
        build.step(at, prompt, build.says(f"answer {at}"), tools=[add, {"type": "web"}])
        for at, prompt in enumerate(prompts)
    ]
    view = TrajectoryView(rt.Trajectory(id="t", steps=steps))
    page, _ = opened(pages, [One(view.outline, view.steps())])
    page.wait_for_selector("text=answer 2")
    assert texts(page, ".seam") == [
        "conversation 0",
        "conversation 1 · begins with 1 message of step 0",
        "conversation 0 · the same prompt as step 0",
    ]
    page.locator('[data-step="2"] .seam button').click()
    page.wait_for_url("**step=0*")
    assert "tools offered\nadd, web" in page.locator("[aria-label=Step]").inner_text()


def test_forks_stand_below_the_run_that_they_go_on_from(pages: Pages) -> None:
    ones = [long(3) for _ in range(4)]
    for at, origin in enumerate((None, 0, 0, 2)):
        summary = ones[at].outline.summary
        summary.id, summary.group, summary.reward = f"run-{at}", None, at / 4
        if origin is not None:
            summary.forked_from, summary.fork_step = f"run-{origin}", at
    page, _ = opened(pages, ones, "#/t/0-2")
    forks = page.locator('[aria-label="Forks"]')
    forks.wait_for()
    assert forks.locator("li").count() == 4
    assert forks.locator(".current").inner_text().split("\n")[0] == "from step 2"
    assert [one.strip() for one in forks.locator("ul ul ul .clip").all_inner_texts()] == ["from step 3"]
    forks.locator("a.compare").first.click()
    page.wait_for_selector(".compare .heads")
    assert page.evaluate("location.hash").startswith("#/compare/0-2/0-0")
    # A run without forks has no such part.
    page, _ = opened(pages, [long(2)])
    page.wait_for_selector(".msg")
    assert page.locator('[aria-label="Forks"]').count() == 0
