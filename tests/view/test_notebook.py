"""Pictures in notebooks: everything escaped, bounded in size; and trajectories as dicts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

import rollout_trace as rt
from rollout_trace.data.user_values import to_builtin
from rollout_trace.view.notebook import element, visible

from .build import conversation, hostile, says, step, user, with_tokens

TAGS = {"div", "span", "b", "table", "tr", "th", "td", "details", "summary"}


class Reader(HTMLParser):
    """The tags, attributes and texts of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def pictures(trajectory: rt.Trajectory) -> dict[str, str]:
    """Each kind of picture, as a notebook asks for it."""
    return {
        "trajectory": trajectory._repr_html_(),
        "step": trajectory.steps[0]._repr_html_(),
        "sequences": trajectory.sequences()._repr_html_(),
        "group": rt.groups([trajectory])[0]._repr_html_(),
    }


@pytest.mark.parametrize("make", [conversation, hostile])
def test_pictures_hold_texts_alone(make: Any) -> None:
    for html in pictures(make()).values():
        html.encode()
        found = Reader(html)
        assert found.open == []
        assert found.tags <= TAGS
        assert found.attributes <= {"class", "style", "title", "open"}
        assert not any(ord(one) < 32 and one not in "\n\t" for one in html)
        assert not {"\u202e", "\u200b", "\ufeff", "\x1b"} & set(html)


def test_a_trajectory_shows_its_conversation_and_its_rows() -> None:
    text = Reader(conversation()._repr_html_()).text
    for part in ("solver", "task sum/1", "reward 1", "Be brief.", "What is 2 + 2?", "calculator", "It is 4.", "1.0 ms"):
        assert part in text.replace("1 ms", "1.0 ms"), part
    assert "training rows" in text


def test_a_group_shows_its_rewards() -> None:
    runs = [rt.Trajectory(group_id="g", reward=reward) for reward in (0.0, 1.0, None)]
    text = Reader(rt.groups(runs)[0]._repr_html_()).text
    assert "runs 3" in text
    assert "mean 0.5" in text
    assert "std 0.7071" in text


def test_long_ones_stay_small() -> None:
    asked, steps = [user("x" * 1_000_000)], []
    for at in range(300):
        answer = says("y" * 5_000)
        steps.append(step(at, asked, answer, **with_tokens([1], list(range(5_000)))))
        asked = [*asked, {"role": "assistant", "content": "y" * 5_000}, user("more")]
    html = rt.Trajectory(steps=steps)._repr_html_()
    assert len(html) < 8_000_000
    assert "260 more steps" in html
    assert "997,000 more characters" in html


def test_markup_escapes_what_is_no_element() -> None:
    inner = element("b", {"title": '"<'}, "<i>&", 3, None, ["a", element("i")])
    assert inner == '<b title="&quot;&lt;">&lt;i&gt;&amp;3a<i></i></b>'
    assert element("p", {"x": None}) == "<p></p>"


def test_what_cannot_be_seen_is_made_visible() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x1b[0m\u202e\ud83d\u2028") == "\\x1b[0m\\u202e\\ud83d\\u2028"
    assert visible("non\u00a0break é 你") == "non\u00a0break é 你"


def test_a_trajectory_as_a_dict_is_its_line() -> None:
    trajectory = conversation()
    assert trajectory.to_dict() == json.loads(trajectory.to_json())
    assert trajectory.to_dict()["steps"][0]["tokens"]["logprobs"] == [-0.25, -0.25]
    assert "\n" not in trajectory.to_json()


def test_json_of_a_trajectory_is_read_as_it(tmp_path: Any) -> None:
    path = tmp_path / "one.jsonl"
    for trajectory in (conversation(), hostile()):
        path.write_text(trajectory.to_json() + "\n", encoding="utf-8")
        assert list(rt.read(path)) == [trajectory]
        assert to_builtin(trajectory.to_dict()) == trajectory.to_dict()


def test_an_open_trajectory_has_no_json() -> None:
    with rt.trajectory() as trajectory, pytest.raises(ValueError, match="still open"):
        trajectory.to_json()
