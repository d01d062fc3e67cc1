"""Frameworks that hold older SDKs, and litellm: `make test-agents-adk`."""
