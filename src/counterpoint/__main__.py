"""`python -m counterpoint`, where the command itself is not on the path; also `torchrun -m counterpoint doctor`."""

from counterpoint.cli import main

main(prog_name="counterpoint")
