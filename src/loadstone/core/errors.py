"""What can go wrong, as a tree.

LoadstoneError       nothing came of it: exit code 2
├── InputError       the user can put it right: one line (what, where, remedy)
│   └── TargetError  the server under test cannot be reached or refuses
└── DiskFullError    the run folder cannot take more; what was measured is kept
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
