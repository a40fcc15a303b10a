"""Lets one process at a time work on the folder of a run or a study, by a lock that ends with its
holder, however that ends.
"""

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from loadstone.core.errors import InputError
from loadstone.core.run_folder.folder import writing
from loadstone.core.text import printable

OWNER = ".owner"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_LOOK_S = 0.2
"""Looking whether a lock is held takes it for a moment: so long is a held one tried again."""
_held: set[int] = set()


def _let_go() -> None:
    """Close the locks in a process forked off an owner: it is none, and must not hold them for as
    long as it lives.
    """
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def own(folder: Path, what: str = "this run") -> Iterator[None]:
    """Be the only one that writes to this folder, of a run from before its run.json until it is
    finished.

    Workers that an owner left behind are no owners; see journal.wait_for_writers. On a file system
    without locks, the file's being there is the lock, and stays behind if its owner is killed.
    Raises InputError, one line, where another process has it.
    """
    path = folder / OWNER
    file = _lock_file(path, what)
    _held.add(file)
    with contextlib.suppress(OSError):  # on a full disk it is held all the same
        os.ftruncate(file, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.pwrite(file, f"{os.getpid()} on {socket.gethostname()} since {since}".encode(), 0)
    try:
        yield
    finally:
        if file in _held:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            _held.discard(file)
            os.close(file)


def _lock_file(path: Path, what: str) -> int:
    """Open the lock's file and lock it."""
    deadline = time.monotonic() + _LOOK_S
    while True:
        with writing(path), contextlib.ExitStack() as stack:
            file, made = _open_lock(path)
            stack.callback(os.close, file)
            try:
                locked = lock(file) or made
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"{path.parent}: {what} is still going on{_name_owner(file)}; wait for its"
                        " end, or stop it"
                    ) from error
                time.sleep(_LOOK_S / 10)
                continue
            if not locked:
                raise InputError(
                    f"{path.parent}: {what} may still be going on{_name_owner(file)}, and this file"
                    f" system has no locks that would tell; once it is over, remove {path}"
                )
            # Who had it may have removed it between opening and locking: then it is a lock of
            # nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    stack.pop_all()
                    return file


def _open_lock(path: Path) -> tuple[int, bool]:
    """Open the file; True if it was made here. What lies there already may be a link of somebody
    else's making."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, flags, 0o666), False


def lock(file: int | IO[bytes], how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool:
    """Lock an open file until it is closed. False where its file system has no locks.

    Raises BlockingIOError where another has it.
    """
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _name_owner(file: int) -> str:
    who = printable(os.pread(file, 200, 0).decode(errors="replace"))
    return f" (process {who})" if who[:1].isdigit() else ""


def is_owned(folder: Path) -> bool:
    """Return True if a process works on this folder now."""
    try:
        file = os.open(folder / OWNER, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
