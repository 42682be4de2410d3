"""Servers with exactly one defect each, of those that a reviewed cancel route for ADK still had."""
