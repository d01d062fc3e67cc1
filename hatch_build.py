"""The description of the core's distribution for a package index: README.md without its links and pictures of files.

They lead to files of the repository, and an index has none of these. The text of a link stays: mostly a file's name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_ADDRESS = r"(?:https?:|mailto:)"
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(rf"!\[[^\]]*\]\((?!{_ADDRESS})[^)]*\)|<picture>.*?</picture>|<img [^>]*>", re.DOTALL)
_LINK = re.compile(rf"\[([^\[\]]*)\]\((?!{_ADDRESS}|#)[^)]*\)")
_EMPTY = re.compile(r"\n{3,}")


class Description(MetadataHookInterface):
    """Sets the field ``readme``, wherever the distribution is built."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Puts the text in."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_files(text)}


def without_files(text: str) -> str:
    """Markdown whose links to files are plain text, and whose pictures of files are gone; code is as it was."""
    # The parts at odd places are blocks of code.
    parts = _CODE.split(text)
    parts[::2] = (_EMPTY.sub("\n\n", _LINK.sub(r"\1", _PICTURE.sub("", part))) for part in parts[::2])
    return "".join(parts)
