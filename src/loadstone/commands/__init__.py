"""The command line ends with an exit code: 0 done; 1 ran, but the result is not trusted or a bound
was missed (`--strict`); 2 bad input, one line on stderr; 130 interrupted, with what was measured
saved; 141 nobody reads stdout any more.

A command is a function of a module here, listed in `COMMANDS`; it imports what it needs when it is
called.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from loadstone.commands.bench import bench
from loadstone.commands.calibrate import calibrate
from loadstone.commands.catalogue import catalogue
from loadstone.commands.compare import compare, trend
from loadstone.commands.exchange import export, import_
from loadstone.commands.launch import launch
from loadstone.commands.offline import offline
from loadstone.commands.output import INTERRUPTED
from loadstone.commands.recommend import recommend
from loadstone.commands.report import report
from loadstone.commands.runs import doctor, query, recover, selftest, show
from loadstone.commands.serve_sim import serve_sim
from loadstone.commands.simulate import simulate
from loadstone.commands.size import size
from loadstone.commands.study import study
from loadstone.commands.tune import tune
from loadstone.commands.validate import validate
from loadstone.commands.view import view
from loadstone.core.errors import InputError, LoadstoneError, NoRoomError, lacks_room
from loadstone.core.host import make_path
from loadstone.core.signals import SIGNALS, Handler
from loadstone.core.text import printable
from loadstone.core.version import __version__
from loadstone.workload.flag_names import flag_here

UNREAD = 141
"""Exit code where nobody reads stdout any more (`| head -1`), as of a program that SIGPIPE kills.
"""

COMMANDS = (
    bench,
    simulate,
    tune,
    serve_sim,
    launch,
    offline,
    recommend,
    size,
    validate,
    calibrate,
    catalogue,
    recover,
    show,
    report,
    query,
    selftest,
    doctor,
    import_,
    export,
    compare,
    trend,
    view,
)


class HeadedCommand(TyperCommand):
    """A command; its help begins with examples, and lists options under their headings."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        lines = examples().get(self.name or "", ())
        if lines:
            formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in lines))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        headed: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is not None:
                heading = (
                    getattr(parameter, "rich_help_panel", None)
                    or f"{parameter.param_type_name}s".capitalize()
                )
                headed.setdefault(heading, []).append(line)
        for heading, lines in headed.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


class ListingGroup(TyperGroup):
    """A group; its help lists commands, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        named = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        lines = [
            (name, command.get_short_help_str(_WHOLE_SENTENCE))
            for name, command in named
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


@cache
def examples() -> dict[str, list[str]]:
    """Read the examples of each command."""
    import tomllib
    from importlib.resources import files

    return tomllib.loads(files(__package__).joinpath("examples.toml").read_text("utf-8"))


_WHOLE_SENTENCE = 200
"""Characters of a command's line in a list of commands, which may be broken."""
_CONTEXT = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(
    help=(
        "Size, simulate, measure and compare LLM inference serving, and know how far each number"
        " can be trusted."
    ),
    cls=ListingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_CONTEXT,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"loadstone {__version__}")
        raise typer.Exit


@app.callback()
def _take_global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take what may stand before a command."""


for _command in COMMANDS:
    # `import` is a word of Python's: its function has an underscore more.
    app.command(
        _command.__name__.rstrip("_").replace("_", "-"),
        cls=HeadedCommand,
        context_settings=_CONTEXT,
    )(_command)

app.add_typer(study, name="study", cls=ListingGroup)


def main(early: Handler | None = None) -> None:
    """Run the command line; errors become one line and an exit code. `early`: what handled signals
    so far."""
    _mend_streams()
    _mend_home()
    try:
        _mend_signals(early)
        _check_words(sys.argv)
        code = app(standalone_mode=False)
    except (LoadstoneError, OSError) as error:
        print(f"loadstone: {_one_line(_message_of(error))}", file=sys.stderr)
        sys.exit(LoadstoneError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        # What typer's parser raises lives in click, or in its own copy of click: told by its
        # methods, not its class.
        message = getattr(error, "format_message", None)
        if isinstance(error, MemoryError) or lacks_room(error):
            print(f"loadstone: {NoRoomError(error)}", file=sys.stderr)
            sys.exit(LoadstoneError.exit_code)
        if message is None:
            raise
        usage = type(error).__name__ == "NoArgsIsHelpError"
        print(
            message() if usage else f"loadstone: {_usage_error(error, message())}; see --help",
            file=sys.stderr,
        )
        sys.exit(LoadstoneError.exit_code)
    except SystemExit as left:
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        code = UNREAD  # typer makes 1 of it, which means something else here
    if (
        code == INTERRUPTED
    ):  # typer makes this of an interrupt; a run that was shown has left by sys.exit
        print("loadstone: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _check_words(words: Sequence[str]) -> None:
    """Refuse a word that is no text: no server and no JSON takes it. Raises InputError."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(word).decode("utf-8", "replace")
            raise InputError(
                f"{shown}: not UTF-8; give a name that is, or use a locale of UTF-8"
            ) from None


def _mend_streams() -> None:
    """Make standard streams that can be written to, in UTF-8 as JSON is, whatever the locale.

    Where one is closed, the next file to be opened would take its place, and what is printed end up
    in it; here, and in the programs that are started from here.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")
    if not isinstance(sys.stderr, _Unheard):
        sys.stderr = cast(TextIO, _Unheard(sys.stderr))


class _Unheard:
    """Holds stderr, which may come to an end before the program does: a pipe that nobody reads any
    more, a terminal that is gone, a full disk. What is printed then is lost, and a run goes on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _mend_signals(early: Handler | None) -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: temporary files go, and the exit code
    says so."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(
            number, signal.SIG_IGN
        )  # who ends a whole group of processes may send it twice
        raise KeyboardInterrupt

    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, early):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else end)


def _mend_home() -> None:
    """Set HOME, for which libraries ask, for a user without a name, such as containers have: to
    what container runtimes make it.
    """
    if make_path("~") == Path("~"):
        os.environ["HOME"] = "/"


def _usage_error(error: Exception, message: str) -> str:
    """Say in one line and our words what typer's parser finds wrong."""
    if type(error).__name__ == "NoSuchOption":
        command = getattr(getattr(error, "ctx", None), "info_name", None)
        renamed = flag_here(getattr(error, "option_name", ""), command)
        if renamed is not None:
            return renamed
    text = _one_line(message).removesuffix(".").replace("Value error, ", "")
    # A shell takes braces apart that are not in quotes.
    return f"{text}; write braces in quotes" if "extra argument" in text and "@" in text else text


def _message_of(error: LoadstoneError | OSError) -> str:
    """Say where, what and remedy, of an error of the system's too."""
    if isinstance(error, LoadstoneError):
        return str(error)
    if lacks_room(error):
        return str(NoRoomError(error))
    if error.errno == errno.ENOENT and error.filename is None:
        return f"{error.strerror}; set TMPDIR to a folder that can be written"  # tempfile's
    # What has no file's name was on its way to stdout.
    return (
        f"{error.filename or 'stdout'}: {error.strerror or error}; give another file, or make room"
    )


def _one_line(message: object) -> str:
    return printable(" ".join(str(message).split()))
