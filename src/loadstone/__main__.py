"""`loadstone`, or `python -m loadstone`: the command line."""

import sys


def main() -> None:
    """Entry point. An interrupt while the commands are still being imported ends in one line, as a later one does."""
    try:
        from loadstone.commands import main as run
    except KeyboardInterrupt:
        sys.stderr.write("loadstone: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
