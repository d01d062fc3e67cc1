"""Tests of the client wrappers: real SDK clients against loopback servers. They run with each supported SDK version."""

import pytest

pytest.register_assert_rewrite("tests.sdk_harness", *(f"{__name__}.{name}" for name in ("either", "harness", "oracle")))
