"""Tokens of completions: their colours, what is known of each, and long ones."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rollout_trace.view.model import Message, Part, RatioBin, StepView, Tokens
from tests.page.conftest import Pages
from tests.page.solver import solver
from tests.page.trajectories import One, long, opened, tokens


def answered(completion: Tokens, parts: list[Part]) -> One:
    """One step with this completion."""
    one = long(1)
    step = one.steps[0]
    line = msgspec.structs.replace(step.line, n_completion=completion.n)
    one.outline.steps[0] = line
    one.steps[0] = StepView(line=line, tokens=completion, answer=Message(role="assistant", parts=parts))
    return one


def shown(page: Any) -> list[str]:
    page.wait_for_selector(".msg .t")
    return [str(one) for one in page.locator(".msg .t").all_text_contents()]


def classes(page: Any) -> list[str]:
    return [(one.get_attribute("class") or "").split()[1] for one in page.locator(".msg .t").all()]


def test_each_token_is_in_the_part_that_it_is_of_and_none_is_left_out(pages: Pages) -> None:
    page, _ = opened(pages, [solver()])
    page.wait_for_selector(".msg .t")
    sampled = solver().steps[0].tokens
    assert sampled is not None
    assert sampled.texts is not None
    section = page.locator("section[data-step='0']")
    assert [int(i) for i in section.locator(".t").evaluate_all("all => all.map(one => one.dataset.i)")] == list(
        range(sampled.n)
    )
    assert section.locator(".part.call .tokens").inner_text().replace("·", " ") == '{"expression": "12 * 7"}'
    assert (
        section.locator(".part.reasoning .tokens").inner_text().startswith("I should multiply first,⏎\nthen add five.")
    )
    assert section.locator(".part.template").first.inner_text() == "<think>⏎"
    assert "special" in (section.locator(".t").first.get_attribute("class") or "")


def test_colours_follow_the_ratio_where_it_is_known(pages: Pages) -> None:
    logs = [math.log(one) for one in (1.0, 1.02, 1 / 1.2, 1.6, 0.4)]
    completion = Tokens(n=5, ids=list(range(5)), texts=list("abcde"), log_ratios=[*logs])
    one = answered(completion, [Part(kind="text", text="abcde")])
    one.outline.ratios = [RatioBin(0, at, value, value, value) for at, value in enumerate(logs)]
    page, _ = opened(pages, [one], "#/t/0-0?color=ratio")
    assert shown(page) == list("abcde")
    assert classes(page) == ["q0", "q1", "q2", "q3", "q4"]
    bars = page.locator(".ratios .bar")
    assert bars.count() == 5
    assert bars.nth(2).get_attribute("aria-label") == "step 0, token 2: ratio 0.833, from 0.833 to 0.833"
    bars.nth(2).press("Enter")
    page.wait_for_selector(".t.pinned")
    assert page.locator(".token-detail").inner_text().split("ratio, trainer to engine")[1].split()[0] == "0.833"
    # Without a trainer's numbers there is neither.
    page, _ = opened(pages, [answered(Tokens(n=1, ids=[1], texts=["a"]), [Part(kind="text", text="a")])])
    page.wait_for_selector(".msg .t")
    assert page.locator('.segments [data-value="ratio"], .ratios').count() == 0


def test_colours_follow_the_logprob_the_entropy_and_the_mask(pages: Pages) -> None:
    completion = Tokens(
        n=7, ids=list(range(7)), texts=list("abcdefg"), entropy=[0.0, 0.2, 0.6, 1.5, 2.5, None, None],
        # As 32 bits hold the logarithm of 0.5: its level is the one that begins there.
        logprobs=[math.log(0.9), math.log(0.89), -0.6931474, math.log(0.49), math.log(0.09), math.log(0.009), None],
    )  # fmt: skip
    page, _ = opened(pages, [answered(completion, [Part(kind="text", text="abcdefg")])])
    assert shown(page) == list("abcdefg")
    # Not known: no colour. It is a class of its own, not the one of what is sure.
    assert [(one.get_attribute("class") or "") for one in page.locator(".msg .t").all()] == [
        "t q0", "t q1", "t q1", "t q2", "t q3", "t q4", "t",
    ]  # fmt: skip
    underlined = page.locator(".msg .t").evaluate_all("all => all.map(one => getComputedStyle(one).textDecorationLine)")
    assert underlined == ["none", "none", "none", "none", "underline", "underline", "none"]
    page.keyboard.press("t")
    assert [(one.get_attribute("class") or "") for one in page.locator(".msg .t").all()] == [
        "t q0", "t q1", "t q2", "t q3", "t q4", "t", "t",
    ]  # fmt: skip
    page.keyboard.press("t")
    assert set(classes(page)) == {"m1"}
    assert page.locator(".legend").inner_text().split("\n")[0] == "trained (mask 1)"
    page.keyboard.press("t")
    assert [(one.get_attribute("class") or "") for one in page.locator(".msg .t").all()] == ["t"] * 7


def test_pointing_at_a_token_shows_what_is_known_of_it_and_a_click_keeps_it(pages: Pages) -> None:
    page, _ = opened(pages, [solver()])
    page.wait_for_selector(".msg .t")
    token = page.locator("section[data-step='0'] .t").nth(4)
    token.hover()
    detail = page.locator(".token-detail")
    expected = solver().steps[0].tokens
    assert expected is not None
    assert expected.logprobs is not None
    assert expected.ids is not None
    assert f"id\n{expected.ids[4]}" in detail.inner_text()
    assert f"logprob\n{expected.logprobs[4]:.3f}" in detail.inner_text()
    assert "row, position\n0, 34" in detail.inner_text()
    assert "policy version\nstep-120" in detail.inner_text()
    assert detail.locator(".alternatives dt").count() == 3
    assert detail.locator(".alternatives dt").first.inner_text().endswith("sampled")
    page.locator("h1").first.hover()
    assert "Point at a token" in detail.inner_text()
    token.click()
    page.locator("h1").first.hover()
    assert "Token 4 of step 0 (kept)" in page.locator(".right h2").first.inner_text()
    assert page.evaluate("location.hash") == "#/t/0-0?step=0&token=4"
    token.click()
    assert page.evaluate("location.hash") == "#/t/0-0?step=0"


def test_arrow_keys_go_over_tokens(pages: Pages) -> None:
    page, _ = opened(pages, [solver()])
    page.wait_for_selector(".msg .t")
    page.locator("section[data-step='0'] .part.reasoning .tokens").focus()
    first = page.locator(".part.reasoning .t").first.get_attribute("data-i")
    for key, moved in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate("location.hash") == f"#/t/0-0?step=0&token={int(first) + moved}"
        assert page.locator(".t.pinned").get_attribute("data-i") == str(int(first) + moved)
    # What a screen reader says.
    assert "probability" in page.locator(".right [aria-live]").inner_text()


def test_tokens_without_texts_are_ids(pages: Pages) -> None:
    completion = Tokens(n=3, ids=[5, 77, 1284], logprobs=[-0.1, -1.0, -5.0])
    page, _ = opened(pages, [answered(completion, [Part(kind="text", text="Hello.")])])
    assert shown(page) == ["5 ", "77 ", "1284 "]
    assert page.locator(".part.text").inner_text() == "Hello."
    assert (
        "ids as they were sampled" in page.locator(".msg.answer").inner_text()
        or page.locator(".part.template").count() == 1
    )


def test_blanks_and_parts_of_characters_can_be_seen(pages: Pages) -> None:
    completion = Tokens(n=6, ids=list(range(6)), texts=["a", "  ", "\n\n", "", "é", "\t"], logprobs=[-0.1] * 6)
    page, _ = opened(pages, [answered(completion, [Part(kind="text", text="a  \n\né\t")])])
    assert shown(page) == ["a", "··", "⏎\n⏎\n", "◌", "é", "⇥\t"]


def test_an_answer_that_is_not_in_its_tokens_is_shown_beside_them(pages: Pages) -> None:
    completion = tokens(['{"a"', ":1", "}", " and", " more", "<|im_end|>"])
    page, _ = opened(pages, [answered(completion, [Part(kind="tool_call", name="f", text='{"a": 1}')])])
    assert len(shown(page)) == 6
    assert page.locator(".part.call .arguments").inner_text() == '{"a": 1}'
    assert "as it was sampled" in page.locator(".part.sampled").inner_text()


def test_a_completion_of_20000_tokens_has_few_elements_and_each_can_be_reached(pages: Pages) -> None:
    texts = [f" w{i}" for i in range(20_000)]
    page, _ = opened(
        pages, [answered(tokens(texts), [Part(kind="text", text="".join(texts).strip())])], "#/t/0-0?step=0&token=15000"
    )
    page.wait_for_selector(".t.pinned")
    assert page.locator(".t.pinned").inner_text().strip() == "w15000"
    box = page.locator(".t.pinned").bounding_box()
    assert 0 < box["y"] < 900
    assert page.locator("*").count() < 8000
    page.locator(".tokens").focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.t.pinned')?.dataset.i === '19999'")
    assert page.locator(".t.pinned").bounding_box()["y"] < 900
    page.wait_for_function("document.querySelectorAll('*').length < 8000")
    # The text of all is there.
    assert page.locator(".tokens").inner_text().split() == [text.strip() for text in texts]
