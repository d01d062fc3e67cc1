"""What there is to say about a request that no recorded answer fits."""

from __future__ import annotations

from dataclasses import dataclass

from rollout_trace import guard
from rollout_trace.data.exchange import Exchange

from ._call_line import call_line
from ._difference import Difference, differences
from ._difference_text import difference_lines, summary
from ._hints import hints
from ._match_facts import Facts, Reason
from ._normal_form import form_of, protocol_of, target_of
from ._paper import Paper
from ._requests import Request, request_of
from ._text_parts import Paint, ordinal, times


@dataclass(frozen=True)
class Unmatched:
    """A request that no recorded exchange answers, and why."""

    request: Request
    nearest: Exchange | None
    """The recorded exchange that it is most like; None where nothing is recorded."""
    reason: Reason
    facts: Facts

    def text(self, *, width: int = 100, paint: Paint | None = None, test: str | None = None) -> str:
        """What is wrong, what differs from the nearest recorded call, and what to do.

        Args:
            width: columns of the terminal.
            paint: colours the text; None: plain.
            test: the test as pytest names it, for the command that records it again.
        """
        paper = Paper(width, paint)
        found: list[Difference] = []
        if self.facts.nearest is not None and self.reason == "not_recorded":
            recorded = request_of(self.facts.nearest.exchange)
            found = differences(form_of(recorded, self.facts.options), form_of(self.request, self.facts.options))
        first = paper.wrapped(self._sentence(found), "bold")
        details = difference_lines(found, paper) if found else self._context(paper)
        what_to_do = hints(self.request, found, self.facts, test)
        blocks = [first, details, ["What to do:", *(line for hint in what_to_do for line in paper.item(*hint))]]
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def _sentence(self, found: list[Difference]) -> str:
        facts = self.facts
        what = self._what()
        if self.reason == "nothing_recorded":
            return f"{what} was not recorded: the cassette is empty."
        if self.reason == "used":
            return f"{what} was recorded {times(facts.times)}, and is asked for a {ordinal(facts.asked)} time."
        if self.reason == "order" and facts.waiting and facts.missing:
            waiting, missing = (one.describe(several=facts.several) for one in (facts.waiting, facts.missing))
            return f"{what} came too early: it is {waiting}, and {missing} should come before it."
        if facts.nearest is None:
            return f"{what} was not recorded."
        sentence = summary(found, facts.nearest.describe(several=facts.several))
        return f"{what} was not recorded: {sentence}.{self._all_used()}"

    def _all_used(self) -> str:
        if not self.facts.recorded or self.facts.used < self.facts.recorded:
            return ""
        one = (
            "The one recorded call has"
            if self.facts.recorded == 1
            else f"All {self.facts.recorded} recorded calls have"
        )
        return f" {one} been used."

    def _what(self) -> str:
        if protocol_of(self.request) is not None:
            return f"call {self.facts.number}"
        return f"the request {guard.printable(target_of(self.request), 200)}"

    def _context(self, paper: Paper) -> list[str]:
        """The calls that a sentence names; what differs between them where that is not in the line of each."""
        lines: list[str] = []
        if self.facts.missing is not None:
            expected = request_of(self.facts.missing.exchange)
            if call_line(expected, paper.room) == call_line(self.request, paper.room):
                options = self.facts.options
                return difference_lines(differences(form_of(expected, options), form_of(self.request, options)), paper)
        if self.facts.missing is not None:
            lines += paper.row("expected", call_line(request_of(self.facts.missing.exchange), paper.room), "red")
        if protocol_of(self.request) is not None:
            lines += paper.row("now", call_line(self.request, paper.room), "green")
        return lines
