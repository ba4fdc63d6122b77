"""Showing what was done: the ledger and the runs of passes as text and JSON, and the history of compiles."""
