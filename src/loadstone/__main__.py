"""`loadstone`, or `python -m loadstone`: the command line."""

import os
import signal
from types import FrameType

from loadstone.core.signals import SIGNALS


def main() -> None:
    """Entry point. While the commands are imported, and once they are done, a signal ends the
    program at once and in one line: what Python makes of it then may be lost in whatever is under
    way.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _end)
    from loadstone.commands import main as run

    try:
        run(_end)
    finally:
        for number in SIGNALS:
            if callable(signal.getsignal(number)):
                signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"loadstone: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
