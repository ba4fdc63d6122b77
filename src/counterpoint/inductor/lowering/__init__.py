"""Lowering collectives in inductor's IR: one row an operator (`table`), in force for our compiles (`scope`)."""
