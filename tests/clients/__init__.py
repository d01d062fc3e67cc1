"""Tests of what records calls: each SDK's clients against loopback servers, with each supported release of the SDK."""

import pytest

pytest.register_assert_rewrite("tests.sdk_harness", f"{__name__}.either")
