import getpass
import json
import math
import os
import socket
from pathlib import Path

import msgspec
import pytest

from loadstone.core import host


def test_a_host_is_described_by_what_it_is_and_not_by_whose() -> None:
    described = msgspec.to_builtins(host.describe())
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


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "20000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.2),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({"cpu.max": "5\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_a_container_has_the_processors_of_its_quota(
    files: dict[str, str], quota: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert host.count_processors() == host.describe().cores == math.ceil(min(64, quota))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity here")
def test_a_process_bound_to_one_processor_has_one() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert host.count_processors() == 1
    finally:
        os.sched_setaffinity(0, before)
