"""CrewAI, whose pins agree with nobody's save mirascope's: `make test-agents-crewai`."""
