"""`bootstrap.py`, with which every command begins: uv gets pip's settings."""

from __future__ import annotations

import bootstrap

LISTED = """\
:env:.cert='/etc/certificates.pem'
:env:.index-url='https://packages.invalid/of-the-environment'
global.extra-index-url='file:///one/simple\\nfile:///two/simple'
global.index-url='https://packages.invalid/of-a-file'
global.no-color='true'
install.timeout='180'
odd line
global.find-links=[
"""


def test_settings_of_pip_become_those_of_uv() -> None:
    assert bootstrap.variables(LISTED) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/etc/certificates.pem",
        "UV_DEFAULT_INDEX": "https://packages.invalid/of-the-environment",
        "UV_INDEX": "file:///one/simple file:///two/simple",
        "UV_HTTP_TIMEOUT": "180",
    }


def test_nothing_is_set_for_a_pip_without_settings() -> None:
    assert bootstrap.variables("") == {"UV_INDEX_STRATEGY": "unsafe-best-match"}
