"""Where sessions, runs, shared state and turn loops are kept: one storage, in memory or in a SQLite file."""
