"""A storage in PostgreSQL, for many processes on many machines."""
