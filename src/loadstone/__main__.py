"""`python -m loadstone`: the command line."""

from loadstone.commands import main

main()
