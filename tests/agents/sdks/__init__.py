"""Frameworks beside the newest SDKs: `make test-agents-sdks`."""
