"""Tests of the integration: real agents of ADK against a scripted server, whose request log is the oracle."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.harness", "oracle")
