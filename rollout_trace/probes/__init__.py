"""Test calls to an endpoint, and a report of what it serves."""
