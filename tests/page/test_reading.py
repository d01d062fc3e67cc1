"""What makes the page good to read and to take from: Markdown, copying, sub-agents below their parents, export."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rollout_trace.view.expression import Expression
from rollout_trace.view.model import Summary
from rollout_trace.view.summary import summarize
from tests.page.conftest import NARROW, WIDE, Pages, Show, assert_accessible_in_both_themes
from tests.page.test_overview import names, ready
from tests.page.test_trajectory import HOSTILE, group
from tests.page.test_trajectory import ready as conversation
from tests.page.trajectories import opened
from tests.view.test_expression import LISTED

MARKDOWN = {
    "# C# and # #": '<p class="md-heading">C# and #</p>',
    "# #": '<p class="md-heading"></p>',
    "*a_ _b* _c_": "<p>*a_ _b* <em>c</em></p>",
    '[a](b "c d") [e](f': '<p>a<span class="soft"> (b)</span> [e](f</p>',
    "# One #\ntwo\nlines": '<p class="md-heading">One</p><p>two\nlines</p>',
    "a **b *c* d** `e * f` ~~g~~ \\*h\\*": "<p>a "
    "<strong>b <em>c</em> d</strong> <code>e * f</code> <del>g</del> *h*</p>",
    "snake_case_name 2 * 3 * 4 _so_": "<p>snake_case_name 2 * 3 * 4 <em>so</em></p>",
    "- a\n  - b\n- c\n\n1. d": "<ul><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ul>"
    '<ol start="1"><li><p>d</p></li></ol>',
    "3) c\n   more\n\n   other": '<ol start="3"><li><p>c\nmore</p><p>other</p></li></ol>',
    "```py\n# no *heading*\n```\nx": '<pre tabindex="0" role="group" aria-label="py"><code># no *heading*</code></pre>'
    "<p>x</p>",
    "```\nopen": '<pre tabindex="0" role="group" aria-label="code"><code>open</code></pre>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "a\n\n---\nb": "<p>a</p><hr><p>b</p>",
    "| a | b |\n|---|--:|\n| 1 | `2` |": '<div class="md-table" tabindex="0" role="group" aria-label="table"><table>'
    "<thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><code>2</code></td></tr></tbody></table></div>",
    # Nothing is loaded, nothing leads away, and HTML stays text.
    "[a](javascript:alert(1)) ![b](http://x/y.png)": '<p>[a](javascript:alert(1)) b<span class="soft"> (http://x/y.png)'
    "</span></p>",
    "<img src=x onerror=alert(1)> **<b>**": "<p>&lt;img src=x onerror=alert(1)&gt; <strong>&lt;b&gt;</strong></p>",
}


@pytest.fixture
def bare(show: Show) -> Any:
    return show([])[0]


def test_markdown(bare: Any) -> None:
    found = bare.evaluate("(all) => all.map((one) => RT.markdown.render(one).innerHTML)", list(MARKDOWN))
    assert dict(zip(MARKDOWN, found, strict=True)) == MARKDOWN


def test_markdown_makes_no_node_that_does_anything(bare: Any) -> None:
    """Whatever the text: elements without behaviour, all text there, and marks without an end cost little."""
    texts = [
        *(HOSTILE, f"# {HOSTILE}\n- {HOSTILE}\n```{HOSTILE}\n", "x" * 150_000, "|" * 20_000 + "\n|--|"),
        *("**" * 20_000, "[" * 20_000, "> " * 5_000, "- " * 5_000, "`" * 20_001, "*a " * 20_000),
        *("[a](b" * 20_000, "[a](b " * 20_000, "# " + " #" * 40_000 + "x", "~" * 90_000 + "`", "[a]" * 30_000),
        *("|\n" + "-" * 90_000 + "x", "|\n" + " " * 90_000 + "x", "|\n|" + "-|" * 40_000 + "x", "_a " * 30_000),
    ]
    found = bare.evaluate(
        """(all) => all.map((one) => {
            const nodes = [...RT.markdown.render(one).querySelectorAll("*")];
            return [nodes.map((node) => node.tagName), nodes.flatMap((node) => node.getAttributeNames())];
        })""",
        texts,
    )
    tags = {tag for some, _ in found for tag in some}
    allowed = {"P", "STRONG", "EM", "DEL", "CODE", "PRE", "UL", "OL", "LI", "BLOCKQUOTE", "HR", "SPAN", "DIV", "BUTTON"}
    assert tags <= {*allowed, "TABLE", "THEAD", "TBODY", "TR", "TH", "TD"}
    assert {name for _, some in found for name in some} <= {"class", "tabindex", "role", "aria-label", "start", "type"}


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_the_reading_mode(pages: Pages, size: tuple[int, int]) -> None:
    ones = group()
    for step in ones[0].steps:
        for message in step.new:
            message.parts[0].text = f"Some **bold** text\n\n- {message.role}"
    page, _ = opened(pages, ones, size=size)
    conversation(page)
    assert page.locator(".md").count() == 0
    page.keyboard.press("m")
    page.locator(".md strong").first.wait_for()
    assert page.locator(".msg .tokens").count() == 0
    # Results of tools are as they were.
    assert page.locator(".msg.tool .md").count() == 0
    assert page.evaluate("location.hash") == "#/t/0-0?read=1"
    assert_accessible_in_both_themes(page, f"reading-{size[0]}")
    page.get_by_role("button", name="read", exact=True).click()
    page.locator(".msg .tokens").first.wait_for()
    assert page.locator(".md").count() == 0


def test_messages_calls_and_ids_are_copied(pages: Pages) -> None:
    page, _ = opened(pages, group())
    conversation(page)
    page.evaluate("addEventListener('copy', () => { window.copied = document.activeElement.value; })")

    def copied(place: Any) -> str:
        place.click()
        place.get_by_text("copied").wait_for()
        return str(page.evaluate("window.copied"))

    assert copied(page.locator(".msg.user > header .copy").first) in page.locator(".msg.user .body").first.inner_text()
    assert copied(page.locator(".part.call > .copy").first).startswith("{")
    assert copied(page.locator(".msg.answer > header .copy").first).startswith("I should multiply")
    trajectory = page.get_by_role("region", name="Trajectory", exact=True)
    assert copied(trajectory.locator(".copy").first) == trajectory.locator("dd").first.inner_text().split()[0]


def test_sub_agents_stand_under_their_parents(show: Show) -> None:
    parents = {"a": None, "c": "b", "b": None, "e": "c", "d": "a", "f": "x", "g": "h", "h": "g"}
    rows = [Summary(id=name, name=name, parent=parent) for name, parent in parents.items()]
    page, _ = show(rows)
    ready(page)
    assert names(page) == list("adbcefgh")
    width = "(line) => parseInt((line.querySelector('.nested') || { style: {} }).style.width || 0)"
    indents = page.evaluate(f"[...document.querySelectorAll('tbody tr')].map({width})")
    assert indents == [0, 14, 0, 14, 28, 0, 0, 14]
    page.get_by_role("button", name="Trajectory", exact=True).click()
    page.wait_for_function("location.hash.includes('sort=name')")
    ready(page)
    assert names(page) == list("abcdefgh")


def test_findings_that_are_no_faults_or_that_every_line_has_are_not_in_the_column(show: Show) -> None:
    rows = [
        Summary(id="a", findings={"truncated": 1, "drift": 1, "forks": 1}, grade="warning"),
        Summary(id="b", findings={"truncated": 2, "forks": 1}, grade="warning"),
        Summary(id="c", findings={"truncated": 1, "ids_missing": 3}, grade="info"),
    ]
    page, _ = show(rows)
    ready(page)
    cells = [text.strip() for text in page.locator('td[data-column="findings"]').all_inner_texts()]
    assert cells == ["drift", "-", "-"]


def test_the_dot_is_of_the_findings_that_are_shown(show: Show) -> None:
    rows = [
        Summary(id=code, findings={"ids_missing": 1, code: 1}, grade="fatal") for code in ("drift", "redacted", "x")
    ]
    page, _ = show(rows)
    ready(page)
    tones = [cell.get_attribute("aria-label") for cell in page.locator('td[data-column="findings"] .dot').all()]
    assert tones == ["warning", "fatal", "fatal"]


def test_a_long_chain_of_sub_agents_is_in_order(bare: Any) -> None:
    """Longer than calls can be nested."""
    found = bare.evaluate(
        """() => {
            const rows = Array.from({ length: 50_000 }, (_, i) => ({ id: `${i}`, parent: `${i + 1}` }));
            return RT.data.underParents(rows).map((row) => row.id);
        }"""
    )
    assert found == [str(i) for i in reversed(range(50_000))]


def test_an_error_is_on_a_screen_of_800_pixels(show: Show) -> None:
    error = "TimeoutError: the sandbox did not answer within 300 s, and so the run was stopped before its end"
    rows = [
        Summary(id=str(i), name="solver", task="swe/django", reward=0.5, error=error, status="failed") for i in range(3)
    ]
    page, _ = show(rows, size=(800, 900))
    ready(page)
    box = page.get_by_text(error).first.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 800
    assert page.evaluate("document.getElementById('main').scrollWidth") <= 800
    cut = "(all) => all.some((one) => one.scrollWidth > one.clientWidth)"
    assert page.locator("td.rest").evaluate_all(cut) is False


QUERIES = [
    *("", "division", "chain left", '"division by zero"', "reward > 0.5", "reward > 0.5 or n_steps < 2"),
    *("status:failed", 'chain and "timeout" in lower(error)'),
    *("(reward > 0.5) or (n_steps < 2)", "chain and ((reward > 0.5) or (n_steps < 2))", "-1 < reward", "it's"),
]


def test_the_commands_that_export_keep_what_the_search_finds(bare: Any) -> None:
    summaries = [msgspec.to_builtins(summarize(one)) for one in LISTED]
    found = bare.evaluate(
        """([summaries, queries]) => queries.map((query) => {
            const rows = summaries.map(RT.defaults.summary);
            const tests = RT.search.terms(query).map((part) => RT.search.compile(part).value);
            const kept = rows.filter((row) => tests.every((test) => RT.expression.truth(test(row))));
            const commands = RT.filters.commands(query, [{ path: "my runs/a.jsonl" }]);
            return [kept.map((row) => row.id), RT.search.expression(query), commands.map(([, line]) => line)];
        })""",
        [summaries, QUERIES],
    )
    for query, (ids, expression, lines) in zip(QUERIES, found, strict=True):
        kept = [one.id for one in LISTED if not expression or Expression(expression)(one)]
        assert kept == ids, query
        assert ("rollout-trace filter" in lines[0]) is bool(query)
        assert any("'my runs/a.jsonl'" in line for line in lines)
    assert found[-1][2][0].startswith("rollout-trace filter '\"it'\\''s\" in lower(id) or ")
    assert found[-2][2][0].startswith("rollout-trace filter '(-1 < reward)' ")
    assert found[-2][2][-1] == "rollout-trace view 'my runs/a.jsonl' --where '(-1 < reward)' --html page.html"
    assert bare.evaluate('RT.filters.commands("", [{ path: "-a.jsonl" }])[0][1]').split()[2] == "./-a.jsonl"
    assert [ids for ids, _, _ in found].count([]) < len(QUERIES) / 2


def test_export_shows_them(show: Show) -> None:
    page, _ = show([Summary(id="a", reward=1.0)], "#/?q=reward+>+0.5")
    ready(page)
    page.get_by_role("button", name="Export").click()
    assert page.locator("dialog code").first.inner_text().startswith("rollout-trace filter 'reward > 0.5' ")
    assert_accessible_in_both_themes(page, "export")
