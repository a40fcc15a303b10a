"""Reads files that anybody may have written: only if they are files, with a bound, decoded
strictly. Makes folders for temporary files."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from loadstone.core.errors import InputError

_T = TypeVar("_T")


def check_file(path: Path) -> None:
    """Raises InputError where a file that is to be written is a folder."""
    if not path.name or path.is_dir():
        raise InputError(f"{path}: is a folder; name a file in it with -o")


class TemporaryFolder:
    """Makes a folder that is removed at the end of a `with` block, or with the program.

    tempfile.TemporaryDirectory leaves it behind where a signal comes between the making and the
    note that it is to be removed.
    """

    def __init__(self, prefix: str = "loadstone-", parent: Path | None = None) -> None:
        """Make it in `parent`; None: where TMPDIR says. Raises OSError."""
        self.path = Path(parent or tempfile.gettempdir()) / f"{prefix}{secrets.token_hex(8)}"
        self._at_exit = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        try:
            self.path.mkdir(mode=0o700)
        except OSError:
            self.keep()  # it is not ours
            raise

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with all that is in it."""
        if self._at_exit.alive:
            shutil.rmtree(self.path, ignore_errors=True)
            self.keep()

    def keep(self) -> None:
        """Leave it and what is in it."""
        self._at_exit.detach()


@contextlib.contextmanager
def explain_os_error(complaint: str, remedy: str) -> Iterator[None]:
    """Make an InputError of an OSError within, of one line: `complaint`, why, and `remedy`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{complaint} ({error.strerror or error}); {remedy}") from error


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read its bytes.

    Raises OSError where it cannot be opened, and where it is no regular file: a pipe would wait for
    somebody to write to it, a device may have no end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise OSError(errno.EINVAL, f"{kind}, not a file", str(path))
    return os.fdopen(descriptor, "rb")


def check_regular(path: Path) -> None:
    """Check, for another library that opens the file next; raises OSError as open_regular()
    does."""
    open_regular(path).close()


def read_bytes(path: Path, most_bytes: int, remedy: str) -> bytes:
    """Read all of a file. Raises InputError, one line that ends with `remedy`, where it cannot be
    read or is larger.
    """
    with explain_os_error(f"{path}: cannot be read", remedy), open_regular(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MiB" if most_bytes >> 20 else f"{most_bytes >> 10} KiB"
        raise InputError(f"{path}: more than {size}, too large; {remedy}")
    return content


def read_json(path: Path, kind: type[_T], most_bytes: int, what: str, remedy: str) -> _T:
    """Read the JSON document of a file as `kind`.

    Raises InputError, one line that ends with `remedy`, where it cannot be read, is larger, or is
    not `what` (with its article): no JSON, no UTF-8, nested too deeply, or of other fields.
    """
    return decode_json(read_bytes(path, most_bytes, remedy), kind, f"{path}: not {what}", remedy)


def decode_json(content: bytes, kind: type[_T], complaint: str, remedy: str) -> _T:
    """Decode JSON as `kind`. Raises InputError: `complaint (reason); remedy`."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise InputError(f"{complaint} ({error}); {remedy}") from error
