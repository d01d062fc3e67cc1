"""The SDK of OpenHands: `make test-agents-openhands`."""
