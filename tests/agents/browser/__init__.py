"""browser-use, whose pins agree with nobody's: `make test-agents-browser`."""
