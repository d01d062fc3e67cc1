"""Tests of `wrap_anthropic`: real SDK clients against loopback servers. They run with each supported SDK version."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("harness", "oracle")))
