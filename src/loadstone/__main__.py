"""`python -m loadstone`: the command line."""

from loadstone.cli import main

main()
