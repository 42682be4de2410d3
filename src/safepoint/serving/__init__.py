"""Runs for clients: accepted, queued, run, watched, stopped, taken over. It knows no HTTP and no wire format."""
