"""HTML made of elements: every text is escaped, and what cannot be seen in it is made visible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TypeAlias

from rollout_trace import credentials
from rollout_trace.guard import SPACES, escaped


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
