"""Frameworks that fit beside the newest SDK of OpenAI: `make test-agents-newest`."""
