"""A trajectory as a conversation in a terminal: what ``rollout-trace show`` and ``trajectory.show()`` print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rollout_trace.view.styles import COLOR_BY, ShowOptions, has_colors
from rollout_trace.view.styles import console as new_console

if TYPE_CHECKING:
    from typing import IO

    from rich.console import Console

    from rollout_trace.data.trajectory import Trajectory
    from rollout_trace.view._canvas import Canvas
    from rollout_trace.view._terminal_parts import Messages
    from rollout_trace.view.styles import ColorBy, ThemeName
    from rollout_trace.view.tokens import TokenTexts
    from rollout_trace.view.trajectory_view import TrajectoryView

_DEEPEST = 8
"""Levels of trajectories inside each other that are shown."""


class NoSuchStep(IndexError):
    """A trajectory has no step of an index."""


class Child(NamedTuple):
    """A trajectory that was opened inside another one."""

    id: str
    name: str
    parent_id: str | None
    parent_step_id: str | None
    started: float | None
    """Unix time."""
    load: Callable[[], Trajectory]


def show(
    trajectory: Trajectory,
    *,
    tokens: bool = False,
    color_by: ColorBy = "logprob",
    full: bool = False,
    step: int | None = None,
    theme: ThemeName | None = None,
    width: int | None = None,
    color: bool | None = None,
    decode: TokenTexts | None = None,
    file: IO[str] | None = None,
) -> None:
    """Prints a trajectory. ``file``: to print to; the other arguments are those of ``Trajectory.show``.

    Raises:
        ImportError: rich is not installed.
        ValueError: an option has another value than those it can have.
        IndexError: there is no such step.
    """
    if color_by not in COLOR_BY:
        raise ValueError(f"color_by is {color_by!r}; it can be {', '.join(map(repr, COLOR_BY))}.")
    if theme not in (None, "dark", "light"):
        raise ValueError(f'theme is {theme!r}; it can be "dark", "light" or None.')
    target = new_console(file=file, theme=theme, width=width, color=color)
    printer = Printer(target, ShowOptions(tokens=tokens, color_by=color_by, full=full, decode=decode))
    if step is not None:
        printer.show_step(trajectory, step)
        return
    inside = getattr(trajectory, "_children", ())
    printer.show(trajectory, lambda: [child_of(one) for one in inside])


def child_of(trajectory: Trajectory) -> Child:
    """A trajectory in memory that was opened inside another one."""
    started = trajectory.started_at
    return Child(
        trajectory.id,
        trajectory.name,
        trajectory.parent_id,
        trajectory.parent_step_id,
        None if started is None else started.timestamp(),
        lambda: trajectory,
    )


class Printer:
    """Prints trajectories to a console, step by step as they are ready."""

    def __init__(self, console: Console, options: ShowOptions) -> None:
        from rollout_trace.view._canvas import Canvas

        self._canvas = Canvas(console)
        self._options = options
        self._shown: set[str] = set()
        self._begun: str | None = None

    def show(self, trajectory: Trajectory, children: Callable[[], Sequence[Child]] = lambda: ()) -> None:
        """Prints a trajectory.

        Args:
            trajectory: the trajectory.
            children: gives the trajectories of its episode that were opened inside it, at any depth; called when the
                first lines are printed.
        """
        self._begin(self._canvas, trajectory)
        view = self._head(self._canvas, trajectory)
        if self._options.tokens:
            from rollout_trace.view._terminal_tokens import legend

            self._canvas.line(legend(self._options.color_by, colors=has_colors(self._canvas.console)))
        self._canvas.flush()
        self._body(self._canvas, view, children(), 0)
        self._canvas.flush()

    def show_step(self, trajectory: Trajectory, index: int) -> None:
        """Prints one step with everything that is recorded of it. Raises IndexError."""
        from rollout_trace.view._terminal_step import show_detail, show_step

        at = step_at(trajectory, index)
        view = _view(trajectory, self._options)
        self._begin(self._canvas, trajectory)
        messages = self._messages()
        (step,) = view.steps(at, at + 1)
        before = view.steps(at - 1, at, tokens=False)[0].line if at else None
        show_step(self._canvas, step, before, messages, self._options, trajectory.name)
        show_detail(self._canvas, step, messages, self._options)
        self._canvas.flush()

    def show_raw(self, trajectory: Trajectory, index: int | None, records: Sequence[Mapping[str, Any]]) -> None:
        """Prints the bytes of one step's request and answer (``index`` None: every step's). Raises IndexError.

        ``records``: the JSON of its steps in the file.
        """
        from rollout_trace.view._terminal_step import show_raw

        steps = range(len(trajectory.steps)) if index is None else [step_at(trajectory, index)]
        for at in steps:
            show_raw(self._canvas, trajectory.steps[at], records[at] if at < len(records) else None)
            self._canvas.flush()

    def _messages(self) -> Messages:
        from rollout_trace.view._terminal_parts import Messages

        return Messages(self._options.text_limit)

    def begin(self, name: str, identity: str, place: str | None = None) -> None:
        """Prints the line that opens a trajectory, which can be known before the trajectory is read."""
        from rollout_trace.view._terminal_parts import show_title

        self._begun = identity
        show_title(self._canvas, name, identity, place)
        self._canvas.flush()

    def _begin(self, canvas: Canvas, trajectory: Trajectory) -> None:
        from rollout_trace.view._terminal_parts import show_identity, show_title

        if self._begun != trajectory.id:
            show_title(canvas, trajectory.name, trajectory.id)
        self._begun = None
        self._shown.add(trajectory.id)
        show_identity(canvas, trajectory)
        canvas.flush()

    def _head(self, canvas: Canvas, trajectory: Trajectory) -> TrajectoryView:
        from rollout_trace.view._terminal_parts import show_exchanges, show_summary
        from rollout_trace.view._terminal_step import show_finding

        view = _view(trajectory, self._options)
        show_summary(canvas, view.summary, trajectory.metadata)
        show_exchanges(canvas, view.outline)
        for finding in view.outline.findings:
            if finding.step is None:
                show_finding(canvas, finding)
        return view

    def _body(self, canvas: Canvas, view: TrajectoryView, children: Sequence[Child], depth: int) -> None:
        from rollout_trace.view._terminal_step import show_step
        from rollout_trace.view.threads import children_after

        trajectory, messages = view.trajectory, self._messages()
        by_id = {one.id: one for one in children if one.parent_id == trajectory.id}
        places = children_after(trajectory.steps, [(one.id, one.parent_step_id, one.started) for one in by_id.values()])
        before = None
        for at in range(-1, len(trajectory.steps)):
            if at >= 0:
                (step,) = view.steps(at, at + 1, tokens=self._options.tokens)
                show_step(canvas, step, before, messages, self._options, trajectory.name)
                canvas.flush()
                before = step.line
            for identity in places.get(at, []):
                self._show_child(canvas, by_id[identity], children, depth + 1)
        if not trajectory.steps:
            canvas.line("no steps", style="meta")
        for run in view.outline.tool_runs:
            if run.step is None:
                canvas.blank()
                messages.run(canvas, run, is_named=True)

    def _show_child(self, canvas: Canvas, child: Child, children: Sequence[Child], depth: int) -> None:
        from rich.text import Text

        from rollout_trace.view.plain_text import one_line

        canvas.blank()
        if child.id in self._shown or depth > _DEEPEST:
            what = "was shown above" if child.id in self._shown else "is nested too deep to be shown here"
            canvas.line(Text(f"sub-agent {one_line(child.name)} {one_line(child.id)} {what}", "child"))
            return
        inner = canvas.nested()
        trajectory = child.load()
        self._begin(inner, trajectory)
        self._body(inner, self._head(inner, trajectory), children, depth)


def _view(trajectory: Trajectory, options: ShowOptions) -> TrajectoryView:
    # Here, because it imports numpy: the first lines are printed before.
    from rollout_trace.view.trajectory_view import TrajectoryView

    return TrajectoryView(trajectory, decode=options.decode)


def step_at(trajectory: Trajectory, index: int) -> int:
    """The index of a step, from 0, where a negative one counts from the end. Raises IndexError."""
    n = len(trajectory.steps)
    if not -n <= index < n:
        has = "no steps" if not n else f"{n:,} steps, 0 to {n - 1}" if n > 1 else "one step, 0"
        raise NoSuchStep(f"there is no step {index}: trajectory {trajectory.id} has {has}.")
    return index % n
