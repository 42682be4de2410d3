"""Conformance suites for authors of a store, a model or a tool."""
