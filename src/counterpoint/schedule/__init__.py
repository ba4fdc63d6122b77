"""Deciding when collectives start and end: a ready list, pure priorities, memory; on paper, without editing a graph."""
