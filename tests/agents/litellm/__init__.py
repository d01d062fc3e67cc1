"""Programs over litellm: `make test-agents-litellm`."""
