"""The only door into torch._inductor: the backend and the doors under inductor's names."""
