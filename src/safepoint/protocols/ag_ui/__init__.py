"""AG-UI, for front ends: a run as server-sent events, and a route that stops it."""
