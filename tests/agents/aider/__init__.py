"""aider, which pins each of its packages: `make test-agents-aider`."""
