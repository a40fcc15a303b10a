"""Defines the package's errors, as a tree.

LoadstoneError       nothing came of it: exit code 2
├── InputError       the user can put it right: one line (what, where, remedy)
│   └── TargetError  the server under test cannot be reached or refuses
├── DiskFullError    the run folder cannot take more; what was measured is kept
└── NoRoomError      this host has no threads or open files left
"""

import errno

_NO_ROOM = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NO_ROOM_WORDS = (
    "can't start new thread",
    "Failed to launch worker thread",
    "Resource temporarily unavailable",
)
"""Python and Arrow say so, in other exceptions than OSError, if the system refused them a thread.
"""


class LoadstoneError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 2


class InputError(LoadstoneError):
    """Something the user gave cannot be used. The message is one line: what, where, remedy."""


class TargetError(InputError):
    """The server under test is not there, or does not do what is needed of it."""


class DiskFullError(InputError):
    """No room left for the run folder."""


class NoRoomError(LoadstoneError):
    """This host, or a limit set on it, refuses memory, a thread or an open file; no file or server
    is at fault."""

    def __init__(self, error: BaseException) -> None:
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        super().__init__(
            f"no room for more memory, processes or open files{reason}; "
            "see ulimit -a, and the limits of the container"
        )


def lacks_room(error: BaseException) -> bool:
    """Return True if an error comes from the host's limits, not from what was read or started. (A
    MemoryError may be of either: a damaged file can ask for any number of bytes.)
    """
    refused = isinstance(error, OSError) and error.errno in _NO_ROOM
    return refused or any(words in str(error) for words in _NO_ROOM_WORDS)


def check_room(error: BaseException) -> None:
    """Raises NoRoomError where `error` tells of that."""
    if lacks_room(error):
        raise NoRoomError(error) from error
