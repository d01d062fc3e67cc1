"""Titles as parts of web addresses."""

import re


def slugify(title: str, limit: int = 40) -> str:
    """The words of a title in lower case, with one dash between them, at most ``limit`` characters.

    It neither begins nor ends with a dash.
    """
    slug = re.sub(r"[^a-z0-9]", "-", title.lower())
    return slug.strip("-")[:limit]
