"""`python -m counterpoint`, where the command itself is not on the path; also `torchrun -m counterpoint doctor`."""

from counterpoint.cli import main

# Processes that a command starts load this module again, under another name.
if __name__ == "__main__":
    main(prog_name="counterpoint")
