"""Where sessions, runs, shared state and loops are kept: one storage, in memory, in a SQLite file, in PostgreSQL."""
