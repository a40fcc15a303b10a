import getpass
import json
import socket
from pathlib import Path

import pytest

from loadstone import host


def test_a_host_is_described_by_what_it_is_and_not_by_whose() -> None:
    described = host.describe()
    assert set(described) == {
        "cpu", "cores", "memory_bytes", "system", "python", "libraries", "open_files_limit", "load_average",
    }  # fmt: skip
    assert described["cores"] >= 1
    assert described["memory_bytes"] > 2**28
    assert described["python"].startswith("3.")
    assert set(described["libraries"]) == {"httptools", "msgspec", "numpy", "pyarrow", "uvloop"}
    assert described["libraries"]["msgspec"]
    text = json.dumps(described)
    assert f'"{socket.gethostname()}"' not in text
    assert f'"{getpass.getuser()}"' not in text


def test_a_library_that_is_not_there_has_no_version() -> None:
    assert host._version("no-such-library-as-this") is None


def test_folders_of_ones_own_are_where_the_desktop_says_unless_that_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, folder, default in (
        ("XDG_CACHE_HOME", host.cache_folder, ".cache"),
        ("XDG_CONFIG_HOME", host.config_folder, ".config"),
    ):
        monkeypatch.setenv(name, str(tmp_path / "other"))
        assert folder() == tmp_path / "other" / "loadstone"
        for elsewhere in ("", "other"):
            monkeypatch.setenv(name, elsewhere)
            assert folder() == tmp_path / default / "loadstone"
