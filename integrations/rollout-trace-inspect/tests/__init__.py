"""Tests of the integration, beside the harness that they share."""
