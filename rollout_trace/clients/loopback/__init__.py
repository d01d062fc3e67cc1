"""Servers on 127.0.0.1 that stand between a program and the real model servers, or for them in tests."""
