"""Counterpoint, a communication compiler for PyTorch."""
