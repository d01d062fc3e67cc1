"""The progress as a bar on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rollout_trace.collection.progress_lines import GAP, Lines, arrange
from rollout_trace.collection.terminal import Above, Direct, WorkerTerminal, same_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rollout_trace.collection.progress import Progress
    from rollout_trace.collection.summary import CollectSummary

_PER_SECOND = 4


class Bar(Lines):
    """A bar on stderr, drawn by a thread: a terminal that stands still (Ctrl-S, a lost connection) holds up nobody."""

    def __init__(self, console: Console | None = None, *, is_drawn: bool = True) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live

        stderr: Any = sys.stderr
        self._above: list[Above] = []
        self._workers: WorkerTerminal | None = None
        if console is None:
            own = Above(stderr, self._put)
            self._above.append(own)
            has_stdout = sys.stdout is not stderr and same_terminal(sys.stdout, stderr)
            if has_stdout:
                self._above.append(Above(sys.stdout, self._put))
            self._workers = WorkerTerminal(self._put, has_stdout=has_stdout)
            # The mode is said: rich would take FORCE_COLOR and the like for it, too.
            console = Console(
                file=Direct(stderr, own.write_through),  # type: ignore[arg-type]
                force_terminal=True,
                force_interactive=True,
                markup=False,
                highlight=False,
                emoji=False,
            )
        self._console = console
        self._progress: Progress | None = None
        self._live = Live(
            console=console,
            auto_refresh=is_drawn,
            refresh_per_second=_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._drawn,
        )

    def begin(self, progress: Progress) -> None:
        self._progress = progress
        for one in self._above:
            one.start()
        if self._workers is not None:
            self._workers.start()
        self._live.start(refresh=True)
        # A process that is killed would leave the terminal without one.
        self._console.show_cursor(True)

    def update(self, progress: Progress) -> None:
        self._progress = progress
        self._note_failure(progress)

    def end(self, progress: Progress, summary: CollectSummary) -> None:
        """Leaves the last bar where it is, and the terminal as it was; writes the summary below."""
        self._progress = progress
        try:
            self._note_failure(progress)
            if self._workers is not None:
                self._workers.stop()
            self._live.stop()
            self._put_summary(summary, self._console.width)
        finally:
            for one in reversed(self._above):
                one.stop()

    def _put(self, lines: str) -> None:
        # Not wrapped and not cut: the terminal shows it as it would without a bar.
        self._console.out(lines, highlight=False)

    def _drawn(self) -> Text:
        from rich.text import Text

        progress, text = self._progress, Text(no_wrap=True, overflow="crop", end="")
        if progress is None:
            return text
        full, rest = ("#", "-") if self._console.options.ascii_only else ("━", "─")
        for at, (columns, pieces) in enumerate(arrange(progress, self._console.width)):
            text.append("\n" if at else "")
            done = columns * progress.done // progress.planned if progress.planned else columns
            text.append(full * done, style="green").append(rest * (columns - done), style="bright_black")
            for index, piece in enumerate(pieces):
                text.append(GAP if index or columns else "").append(piece.text, style=piece.style)
        return text
