"""The parts of the pass `schedule-overlap`: buckets, the order of nodes, what the ledger is told."""
