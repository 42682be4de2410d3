"""Suites for those who write a store, a model or a tool of their own."""
