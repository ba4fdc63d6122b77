"""Reading and editing a graph: collectives as data, views, transactions, the verifier, text, simulated ranks."""
