"""Coding agents from npm, run here against servers of our own, and what they write of it: make test-clis."""
