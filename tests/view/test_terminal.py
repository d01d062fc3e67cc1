"""Trajectories in a terminal: pictures, looked at once and kept; and what has to hold of any of them."""

from __future__ import annotations

import io
import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.color import Color, ColorType

import rollout_trace as rt
from rollout_trace.view.model import Tokens
from rollout_trace.view.numbers import of
from rollout_trace.view.plain_text import cut, lines_of, money, one_line, seconds
from rollout_trace.view.styles import LEFT_OUT, MARKS, THEMES, ShowOptions, console, levels_of, theme_of
from rollout_trace.view.terminal import NoSuchStep, Printer, show
from tests.strategies import trajectories

from .build import conversation, hostile, says, step, user, with_tokens
from .pictures import FOLDER, PICTURES, draw, family


def drawn(trajectory: rt.Trajectory, *, width: int = 80, color: bool = False, **options: Any) -> str:
    file = io.StringIO()
    Printer(console(file=file, width=width, color=color), ShowOptions(**options)).show(trajectory)
    return file.getvalue()


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_as_they_were_looked_at(name: str) -> None:
    # After a change on purpose: python -m tests.view.pictures, and look at what git shows.
    assert PICTURES[name]() == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [30, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for text in (draw(width=width), draw(width=width, tokens=True), drawn(hostile(), width=width, tokens=True)):
        assert max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [20, 80])
def test_no_character_of_a_text_steers_the_terminal(width: int) -> None:
    file = io.StringIO()
    printer = Printer(console(file=file, width=width, color=False), ShowOptions(tokens=True, full=True))
    printer.show(hostile())
    printer.show_step(hostile(), 0)
    printer.show_raw(hostile(), None, [{"\x1b[31m": "\x1b[31m\u202e"}])
    shown = file.getvalue()
    assert [one for one in shown.replace("\n", "") if not one.isprintable()] == []
    assert r"\x1b[31mred" in shown
    assert "<script>alert(1)</script>" in shown.replace("\n", "") or width < 80


@given(trajectories())
def test_any_trajectory_can_be_shown(trajectory: rt.Trajectory) -> None:
    shown = drawn(trajectory, tokens=True)
    assert trajectory.status in shown or not trajectory.status.isprintable() or len(trajectory.status) > 60
    assert all(one.isprintable() or one == "\n" or one.isspace() for one in shown)


@given(st.text())
def test_lines_are_safe_and_lose_nothing_that_is_printable(text: str) -> None:
    lines = lines_of(text)
    assert all(one.isprintable() or one.isspace() for line in lines for one in line)
    assert not any(one in "\r\x0b\x0c\x85\u2028\u2029\x1b" for line in lines for one in line)
    assert [one for one in text if one.isprintable() and one != " "] == [
        one for one in "".join(lines_of("".join(filter(str.isprintable, text)))) if one != " "
    ]
    assert "\n" not in one_line(text)


def test_a_result_is_shown_once_and_an_other_one_that_the_model_read_as_well() -> None:
    assert drawn(conversation()).count("← (1 ms) 4") == 1
    assert "tool · calculator" not in drawn(conversation())
    other = conversation()
    other.tool_runs[0].result = "five"
    assert "← (1 ms) five" in drawn(other)
    assert "tool · calculator\n  4\n" in drawn(other)


def test_what_is_left_out_says_why_and_stands_in_brackets() -> None:
    trajectory = family()[0]
    trajectory.steps[1].trainable = False
    shown = drawn(trajectory, tokens=True)
    assert f"{LEFT_OUT[0]}Mean of an «empty»" in shown
    assert "in no training row: not_trainable" in shown


def test_reasoning_without_tokens_is_not_lost_beside_tokens() -> None:
    shown = drawn(family()[0], tokens=True)
    assert "thinks: The mean of nothing fails." in shown
    assert "  I run the tests.\n" not in shown


def test_ids_are_shown_where_there_are_no_texts_and_a_tokenizer_gives_them() -> None:
    class Letters:
        def texts(self, ids: Any, /) -> list[str]:
            return [chr(96 + one) for one in ids]

    assert "ids: «7» «8» «9»" in drawn(conversation(), tokens=True)
    assert "«g»«h»«i»" in drawn(conversation(), tokens=True, decode=Letters())


def test_long_texts_are_cut_and_said_to_be_and_shown_on_request() -> None:
    trajectory = conversation()
    trajectory.steps[0] = step(0, [user("¤" * 100_000)], says("y"), **with_tokens([1], [2] * 3000))
    shown, full = drawn(trajectory, tokens=True), drawn(trajectory, tokens=True, full=True)
    assert "... 98,000 more characters" in shown
    assert "... 2,000 more tokens" in shown
    assert (shown.count("¤"), "more" in full, full.count("¤") == 100_000) == (2000, False, True)
    assert cut("x" * 2100, 2000) == ("x" * 2100, 0)


def test_a_step_that_there_is_not_is_an_error() -> None:
    with pytest.raises(NoSuchStep, match="no step 2: trajectory t has 2 steps, 0 to 1"):
        show(conversation(), step=2)
    with pytest.raises(ValueError, match="color_by is 'mood'"):
        show(conversation(), color_by="mood")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="theme is 'red'"):
        show(conversation(), theme="red")  # type: ignore[arg-type]


def test_the_method_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    conversation().show(width=80)
    assert "What is 2 + 2?" in capsys.readouterr().out
    conversation().show(step=-1, width=80)
    assert "── step 1 ──" in capsys.readouterr().out


def test_without_rich_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ImportError, match=r"needs the package rich.*pip install '\.\[rich\]'"):
        conversation().show()


def test_an_encoding_without_the_characters_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(data, encoding="ascii", write_through=True))
    family()[0].show(width=80)
    assert rb"\u7a7a" in data.getvalue()


def test_sub_agents_inside_each_other_without_end_are_shown_once() -> None:
    parent, child = family()
    parent.parent_id, parent.parent_step_id = child.id, child.steps[0].id
    from rollout_trace.view.terminal import child_of

    file = io.StringIO()
    printer = Printer(console(file=file, width=80, color=False), ShowOptions())
    printer.show(parent, lambda: [child_of(child), child_of(parent)])
    assert file.getvalue().count("━━ repair · 0f3c ━") == 1
    assert "sub-agent repair 0f3c was shown above" in file.getvalue()


# Colours


def _luminance(color: Color) -> float:
    triplet = color.get_truecolor()
    parts = [one / 255 for one in triplet]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: float, two: float) -> float:
    return (max(one, two) + 0.05) / (min(one, two) + 0.05)


@pytest.mark.parametrize(
    ("theme", "backgrounds"), [("dark", ("#000000", "#1e1e1e")), ("light", ("#ffffff", "#fdf6e3"))]
)
def test_every_colour_can_be_read_on_its_background(theme: Any, backgrounds: tuple[str, ...]) -> None:
    target = console(file=io.StringIO(), theme=theme, color=True)
    for name in THEMES[theme]:
        style = target.get_style(name)
        if style.color is None:
            continue
        assert style.color.type == ColorType.EIGHT_BIT
        behind = [style.bgcolor] if style.bgcolor is not None else list(map(Color.parse, backgrounds))
        for background in behind:
            assert _contrast(_luminance(style.color), _luminance(background)) >= 4.5, (name, background)


def test_the_background_is_found_where_the_terminal_says_it() -> None:
    assert [theme_of({"COLORFGBG": one}) for one in ("0;15", "15;0", "0;default;7", "", "x")] == [
        "light", "dark", "light", "dark", "dark"]  # fmt: skip


def test_no_color_prints_the_facts_as_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    show(family()[0], tokens=True, width=80, file=file)
    assert "«empty»" in file.getvalue()
    assert "\x1b[38" not in file.getvalue()


def test_levels_are_those_of_the_legend() -> None:
    chances = [1.0, 0.9, 0.89, 0.5, 0.49, 0.1, 0.09, 0.01, 0.009]
    tokens = Tokens(
        n=10, logprobs=[*map(math.log, chances), None], entropy=[0.0, 0.1, 0.5, 1.0, 2.0, 9.0, None, 0, 0, 0]
    )
    assert levels_of(tokens, "logprob") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 0]
    assert levels_of(tokens, "entropy") == [0, 1, 2, 3, 4, 4, 0, 0, 0, 0]
    ratios = [1.0, 1.009, 1.01, 1 / 1.1, 1.5, 0.5, 3.0]
    tokens = Tokens(n=8, log_ratios=[*map(math.log, ratios), None])
    assert levels_of(tokens, "ratio") == [0, 0, 1, 2, 3, 4, 4, 0]
    assert levels_of(Tokens(n=1, ids=[1]), "ratio") is None
    assert len(MARKS) == 5


def test_numbers_are_written_as_people_read_them() -> None:
    assert [seconds(one) for one in (None, 0.0004, 0.25, 1.25, 59.9, 125, 3 * 3600 + 60)] == [
        "-", "0.4 ms", "250 ms", "1.25 s", "59.9 s", "2 min 5 s", "3 h 1 min"]  # fmt: skip
    assert [of(one, "step") for one in (0, 1, 1234)] == ["0 steps", "1 step", "1,234 steps"]
    assert [money(1.5, None), money(0.00123456, "USD"), money(2, "EUR")] == ["$1.5", "$0.001235", "2 EUR"]


def test_a_step_with_the_same_prompt_names_the_step_that_shows_it() -> None:
    system, tool = {"role": "system", "content": "Be brief."}, {"type": "function", "function": {"name": "add"}}
    other = [system, user("And you?")]
    prompts = [[system, user("hi")], other, [system, user("hi")], other]
    steps = [step(at, prompt, says(str(at)), tools=[tool, {"type": "web"}]) for at, prompt in enumerate(prompts)]
    trajectory = rt.Trajectory(id="t", steps=steps)
    titles = [line.strip("─ ") for line in drawn(trajectory).splitlines() if line.startswith("── step")]
    assert titles == [
        "step 0",
        "step 1 · conversation 1 begins",
        "step 2 · conversation 0 · the same prompt as step 0",
        "step 3 · conversation 1 · the same prompt as step 1",
    ]
    assert drawn(trajectory).count("begins with 1 message of step 0") == 1
    file = io.StringIO()
    show(trajectory, step=0, width=80, file=file)
    assert "tools offered: add, web\n" in file.getvalue()
