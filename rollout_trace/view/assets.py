"""The files of the page: ``page/index.html``, and the styles and scripts that ``page/order.txt`` joins."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path

_FOLDER = Path(__file__).parent / "page"
_TYPES = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
_STYLES, _SCRIPTS, _TITLE = "<!-- styles -->", "<!-- scripts -->", "<title>rollout_trace</title>"


@cache
def names() -> tuple[str, ...]:
    """Names of the styles and scripts, in the order in which they are joined."""
    return tuple((_FOLDER / "order.txt").read_text(encoding="utf-8").split())


def asset(name: str) -> tuple[bytes, str] | None:
    """All styles (``page.css``) or scripts (``page.js``) as one file, and its content type; None for other names."""
    return (_joined(Path(name).suffix).encode(), _TYPES[name]) if name in _TYPES else None


def linked_page() -> str:
    """The page that loads its styles and scripts from beside its own address."""
    page = _index().replace(_STYLES, '<link rel="stylesheet" href="page.css">')
    return page.replace(_SCRIPTS, '<script src="page.js"></script>')


def whole_page(title: str) -> tuple[str, str]:
    """The page with its styles and scripts inside, in two parts: what stands before its data, and what stands behind.

    Its policy allows these scripts and styles alone, by their hashes, and no connection.

    Args:
        title: of the page.
    """
    style, script = (_joined(suffix) for suffix in (".css", ".js"))
    policy = (
        f"default-src 'none'; img-src data:; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{escape(title)}</title>'
    page = _index().replace(_TITLE, head).replace(_STYLES, f"<style>{style}</style>")
    before, _, after = page.partition(_SCRIPTS)
    return before, f"<script>{script}</script>{after}"


def _index() -> str:
    return (_FOLDER / "index.html").read_text(encoding="utf-8")


def _joined(suffix: str) -> str:
    parts = [(_FOLDER / name).read_text(encoding="utf-8") for name in names() if name.endswith(suffix)]
    text = "\n".join(parts)
    for end in ("</script", "</style", "<!--"):
        # Inside an element these would end it, or begin a comment. Ours have none; a test looks.
        if end in text.lower():
            raise ValueError(f"a file of the page has the text {end}, which cannot stand inside of a page.")
    return text


def _digest(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
