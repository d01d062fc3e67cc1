"""Pictures for notebooks: what ``_repr_html_`` of trajectories, steps, rows and groups returns.

Static HTML with the styles in its elements, of at most a few hundred kB: texts, steps and rows past a limit are
counted. Colours have an alpha, as a notebook's background may be light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from rollout_trace import credentials
from rollout_trace.guard import SPACES, escaped
from rollout_trace.view import numbers
from rollout_trace.view.model import Message, Part, RowView, StepView, Summary, Tokens, ToolRunView
from rollout_trace.view.styles import probability_level
from rollout_trace.view.summary import row_view
from rollout_trace.view.trajectory_view import TrajectoryView

if TYPE_CHECKING:
    from rollout_trace.data.model import Step
    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.train.groups import Group
    from rollout_trace.train.sequence import Sequences


_STEPS, _TEXT, _TOKENS, _ROWS, _RUNS = 40, 3_000, 1_500, 50, 100
_BOX = "border:1px solid rgba(128,128,128,.35);border-radius:6px;padding:6px 10px;margin:6px 0;"
_SOFT = "opacity:.7;font-size:85%;"
_MONO = "font-family:ui-monospace,monospace;font-size:90%;white-space:pre-wrap;overflow-wrap:anywhere;"
_COLOURS = (None, "rgba(150,190,60,.28)", "rgba(240,180,40,.35)", "rgba(240,130,40,.42)", "rgba(225,70,60,.45)")
"""Of the levels of tokens."""
_STRIP = "display:flex;height:12px;margin:3px 0;border-radius:3px;overflow:hidden;"
_GRADES = {"fatal": "#d0453f", "warning": "#a87000", "info": "#7a7f87"}


def trajectory_html(trajectory: Trajectory) -> str:
    """A trajectory: its facts, its conversation, the rows that training gets."""
    view = TrajectoryView(trajectory)
    steps = view.steps(0, _STEPS)
    more = len(view.outline.steps) - len(steps)
    return _whole(
        _head(view.summary),
        [_finding(one.grade, one.code, one.message) for one in view.outline.findings if one.step is None],
        map(_step, steps),
        _soft(f"and {more:,} more steps") if more else None,
        _strips(view.outline.rows),
    )


def step_html(step: Step) -> str:
    """A step: the messages of its request, its answer, and its facts."""
    from rollout_trace.data.trajectory import Trajectory

    shown = TrajectoryView(Trajectory(steps=[step])).steps()
    return _whole([_step(one, is_open=True) for one in shown])


def sequences_html(rows: Sequences) -> str:
    """Training rows, as strips with their masks."""
    report = rows.report
    left_out = ", ".join(f"{reason} {len(ids)}" for reason, ids in report.left_out.items())
    facts = {
        "rows": report.sequences,
        "steps used": report.steps_used,
        "tokens": report.tokens,
        "trained": report.trainable_tokens,
        "drift": len(report.drift) or None,
        "left out": left_out or None,
    }
    return _whole(_facts(facts), _strips([row_view(row, {}) for row in rows]))


def group_html(group: Group) -> str:
    """A group: its rewards, and its runs."""
    facts: dict[str, Child] = {
        "group": str(group.id),
        "runs": len(group.trajectories),
        "scored": group.n_scored,
        "mean": _number(group.mean),
        "std": _number(group.std),
    }
    known = [reward for reward in group.rewards if reward is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    cells = [_cell(reward, low, high) for reward in group.rewards[:500]]
    head = [element("th", {"style": "text-align:left;padding-right:12px;"}, name) for name in _RUN_COLUMNS]
    rows = [_run_row(run) for run in group.trajectories[:_RUNS]]
    more = len(group.trajectories) - len(rows)
    return _whole(
        _facts(facts),
        element("div", {"style": "display:flex;gap:2px;margin:6px 0;flex-wrap:wrap;"}, cells),
        element("table", {"style": "font-size:90%;"}, element("tr", None, head), rows),
        _soft(f"and {more:,} more runs") if more else None,
    )


_RUN_COLUMNS = ("id", "index", "reward", "status", "steps")


def _run_row(run: Trajectory) -> Html:
    values: tuple[Child, ...] = (run.id, run.rollout_index, _number(run.reward), run.status, len(run.steps))
    return element(
        "tr",
        None,
        [element("td", {"style": "text-align:left;padding-right:12px;"}, "-" if v is None else v) for v in values],
    )


def _cell(reward: float | None, low: float, high: float) -> Html:
    share = 0.0 if reward is None or high == low else (reward - low) / (high - low)
    colour = "transparent" if reward is None else f"rgba(47,143,91,{0.12 + 0.75 * share:.2f})"
    style = f"width:22px;height:22px;border:1px solid rgba(128,128,128,.4);border-radius:3px;background:{colour};"
    return element("span", {"style": style, "title": "not scored" if reward is None else _number(reward)})


def _whole(*children: Child) -> str:
    style = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:1100px;text-align:left;"
    return str(element("div", {"class": "rollout-trace", "style": style}, *children))


def _head(one: Summary) -> Html:
    facts: dict[str, Child] = {
        "id": one.id,
        "task": one.task,
        "group": one.group,
        "status": one.status,
        "reward": _number(one.reward),
        "steps": one.steps,
        "tokens in": _count(one.input_tokens),
        "out": _count(one.output_tokens),
        "rows": one.rows,
        "trained": _count(one.trained),
        "cost": None if one.cost is None else f"{_number(one.cost)} {one.currency}",
        "took": _seconds(one.seconds),
    }
    return joined([element("b", None, one.name), " ", _facts(facts), _error(one.error)])


def _facts(facts: Mapping[str, Child]) -> Html:
    known = [(name, value) for name, value in facts.items() if value is not None]
    parts = [[" · " if at else None, _soft(f"{name} "), value] for at, (name, value) in enumerate(known)]
    return element("span", None, parts)


def _step(step: StepView, *, is_open: bool = False) -> Html:
    line = step.line
    facts: dict[str, Child] = {
        "step": line.index,
        "agent": line.agent,
        "model": line.model,
        "finish": line.finish,
        "status": None if line.status == "ok" else line.status,
        "took": _seconds(line.latency),
        "tokens": None
        if line.n_completion is None
        else f"{line.n_prompt if line.n_prompt is not None else '?'} + {line.n_completion}",
        "row": line.row,
        "left out": line.left_out,
    }
    drift = step.drift
    return joined(
        [
            map(_message, step.new),
            None
            if drift is None
            else _finding(
                "warning",
                f"drift, {drift.kind}",
                f"the prompt leaves step {drift.previous} at token {drift.position}: {drift.meaning}",
            ),
            element(
                "div",
                {"style": _BOX + "border-left:3px solid rgba(52,84,209,.8);"},
                element("div", None, element("b", None, "assistant"), "  ", _facts(facts)),
                None if step.answer is None else [_part(part) for part in step.answer.parts],
                _tokens(step.tokens, is_open=is_open),
                map(_tool_run, step.tool_runs),
                _error(step.error),
                [_finding(one.grade, one.code, one.message) for one in step.findings],
            ),
        ]
    )


def _message(message: Message) -> Html:
    name = message.role if message.name is None else f"{message.role} {message.name}"
    return element("div", {"style": _BOX}, element("b", None, name), map(_part, message.parts))


def _part(part: Part) -> Html:
    text, more = part.text[:_TEXT], len(part.text) - _TEXT
    rest = _soft(f" … {more:,} more characters") if more > 0 else None
    if part.kind in ("image", "audio", "file"):
        # Not loaded, wherever it is.
        return element("div", {"style": _SOFT}, f"[{part.kind} {part.name or ''} {len(part.text):,} characters]")
    if part.kind == "tool_call":
        return element("div", {"style": _MONO}, f"→ {part.name or '?'}(", text, rest, ")")
    body = element(
        "div", {"style": _MONO if part.kind == "json" else "white-space:pre-wrap;overflow-wrap:anywhere;"}, text, rest
    )
    if part.kind == "reasoning":
        return element("details", {"style": "opacity:.8;"}, element("summary", None, "reasoning"), body)
    return body


def _tokens(tokens: Tokens | None, *, is_open: bool) -> Html | None:
    if tokens is None or tokens.logprobs is None or (tokens.texts is None and tokens.ids is None):
        return None
    texts = tokens.texts or [f"{one} " for one in tokens.ids or ()]
    shown = [_token(tokens, at, text) for at, text in enumerate(texts[:_TOKENS])]
    more = tokens.n - len(shown)
    return element(
        "details",
        {"open": "" if is_open else None},
        element("summary", {"style": _SOFT}, f"{tokens.n:,} tokens, coloured by logprob"),
        element("div", {"style": _MONO}, shown, _soft(f" … {more:,} more") if more > 0 else None),
    )


def _token(tokens: Tokens, at: int, text: str) -> Html:
    logprob = None if tokens.logprobs is None else tokens.logprobs[at]
    colour = _COLOURS[probability_level(logprob)]
    ids = "" if tokens.ids is None else f"id {tokens.ids[at]}, "
    return element(
        "span",
        {
            "title": f"{ids}logprob {'-' if logprob is None else f'{logprob:.3f}'}",
            "style": None if colour is None else f"background:{colour};",
        },
        text,
    )


def _tool_run(run: ToolRunView) -> Html:
    took = "" if run.duration is None else f" {_seconds(run.duration)}"
    result = run.error if run.error is not None else run.result or ""
    return element(
        "details",
        None,
        element("summary", None, f"{run.name or 'tool'}{took}{' failed' if run.error is not None else ''}"),
        element("div", {"style": _MONO}, result[:_TEXT], _soft(" …") if len(result) > _TEXT else None),
    )


def _strips(rows: Sequence[RowView]) -> Html | None:
    if not rows:
        return None
    longest = max(row.length for row in rows) or 1
    more = len(rows) - _ROWS
    return element(
        "div", {"style": "margin-top:8px;"}, _soft("training rows"), [_strip(row, longest) for row in rows[:_ROWS]],
        _soft(f"and {more:,} more rows") if more > 0 else None,
    )  # fmt: skip


def _strip(row: RowView, longest: int) -> Html:
    # Of very long rows the parts would be thinner than a pixel, and thousands of them.
    parts = [
        element(
            "span",
            {"style": f"flex:{part.length} 0 0;background:rgba({'52,84,209,.75' if part.mask else '128,128,128,.3'});"},
        )
        for part in row.parts[:400]
    ]
    title = f"{row.length} tokens, {row.trained} trained, reward {_number(row.reward) or 'none'}"
    style = f"{_STRIP}width:{100 * row.length / longest:.1f}%;"
    return element("div", {"style": style, "title": title}, parts)


def _finding(grade: str, code: str, message: str) -> Html:
    label = element("b", {"style": f"color:{_GRADES[grade]};font-size:85%;"}, f"{grade}: {code}")
    return element("div", None, label, _soft(f" {message}"))


def _error(error: str | None) -> Html | None:
    return None if error is None else element("div", {"style": _MONO + "color:#d0453f;"}, error[:_TEXT])


def _soft(text: str) -> Html:
    return element("span", {"style": _SOFT}, text)


def _count(value: int | None) -> str | None:
    return None if value is None else numbers.count(value)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.1f} s"


def _number(value: float | None) -> str | None:
    return None if value is None else numbers.number(value)


class Html(str):
    """HTML, as ``element`` makes it. Any other text is escaped where it becomes a child."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"


def element(tag: str, attributes: Mapping[str, str | None] | None = None, *children: Child) -> Html:
    """An element. Attributes that are None are left out; so are children that are None."""
    given = "".join(
        f' {name}="{escape(visible(value))}"' for name, value in (attributes or {}).items() if value is not None
    )
    return Html(f"<{tag}{given}>{joined(children)}</{tag}>")


def joined(children: Iterable[Child]) -> Html:
    """Children one after the other."""
    return Html("".join(map(_child, children)))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, (str, int, float)):
        return escape(visible(str(child)))
    return joined(child)


def visible(text: str) -> str:
    """The text with control, bidi and zero-width characters and halves of surrogate pairs as escapes.

    Line ends and tabs stay. Keys of this process's clients are cut out.
    """
    return escaped(credentials.cut(text), SPACES + "\n\t")
