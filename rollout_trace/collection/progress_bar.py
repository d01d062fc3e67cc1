"""The progress as a bar on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rollout_trace import guard
from rollout_trace.collection.above import Above, Direct, same_terminal
from rollout_trace.collection.progress_lines import NAME, NewFailures, summary_lines
from rollout_trace.collection.progress_text import GAP, Piece, arrange
from rollout_trace.collection.worker_terminal import WorkerTerminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rollout_trace.collection.snapshot import Progress
    from rollout_trace.collection.summary import CollectSummary

_PER_SECOND = 4


class Bar:
    """A bar on stderr, drawn by a thread: a terminal that stands still (Ctrl-S, a lost connection) holds up nobody.

    Args:
        console: to draw on; by default one on stderr.
        is_drawn: whether a thread draws it.
    """

    def __init__(self, console: Console | None = None, *, is_drawn: bool = True) -> None:
        from rich.console import Console
        from rich.live import Live

        stderr: Any = sys.stderr
        self._above: list[Above] = []
        self._workers: WorkerTerminal | None = None
        if console is None:
            own = Above(stderr, self._put)
            self._above.append(own)
            if sys.stdout is not stderr and same_terminal(sys.stdout, stderr):
                self._above.append(Above(sys.stdout, self._put))
            self._workers = WorkerTerminal(self._put, has_stdout=len(self._above) == 2)
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
        self._failures = NewFailures()
        self._live = Live(
            console=console,
            auto_refresh=is_drawn,
            refresh_per_second=_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
            get_renderable=self._drawn,
        )

    def begin(self, progress: Progress) -> None:
        """Shows the bar."""
        self._progress = progress
        for one in self._above:
            one.start()
        if self._workers is not None:
            self._workers.start()
        self._live.start(refresh=True)
        # A process that is killed would leave the terminal without one.
        self._console.show_cursor(True)

    def update(self, progress: Progress) -> None:
        """Shows it from the next drawing on, four times a second."""
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
            self._put("\n".join(summary_lines(summary, self._console.width)))
        finally:
            for one in reversed(self._above):
                one.stop()

    def note(self, text: str) -> None:
        """Writes a line above the bar."""
        self._put(f"{NAME}: {guard.printable(text)}")

    def _note_failure(self, progress: Progress) -> None:
        failure = self._failures.text(progress)
        if failure is not None:
            self.note(failure)

    def _put(self, lines: str) -> None:
        # Not wrapped and not cut: the terminal shows it as it would without a bar.
        self._console.out(lines, highlight=False)

    def _drawn(self) -> Text:
        from rich.text import Text

        progress, width = self._progress, self._console.width
        text = Text(no_wrap=True, overflow="crop", end="")
        if progress is None:
            return text
        for at, (columns, pieces) in enumerate(arrange(progress, width)):
            text.append("\n" if at else "")
            if columns:
                _append_bar(text, progress, columns, has_ascii_only=self._console.options.ascii_only)
            for index, piece in enumerate(pieces):
                _append(text, piece, GAP if index or columns else "")
        return text


def _append(text: Text, piece: Piece, gap: str) -> None:
    text.append(gap).append(piece.text, style=piece.style)


def _append_bar(text: Text, progress: Progress, columns: int, *, has_ascii_only: bool) -> None:
    done = columns * progress.done // progress.planned if progress.planned else columns
    full, rest = ("#", "-") if has_ascii_only else ("━", "─")
    text.append(full * done, style="green").append(rest * (columns - done), style="bright_black")
