"""A run keeps what it was made with, so that a stranger can make it again:
RunInfo.settings.provenance. No I/O."""

import msgspec

_OF_THE_PLACE = (
    "host",
    "port",
    "name",
    "nccl_port",
    "dist_init_addr",
    "master_addr",
    "master_port",
    "node_rank",
)
"""Flags that say where an engine is and not what it does."""


class GitState(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of the folder that a run was started in. `changed`: files differ from it; None:
    not known."""

    commit: str
    changed: bool | None = None


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes an engine started for the run; of one that ran already, it holds what this machine
    tells.

    commands      the words that started each rank, rank 0 first, without secrets
    image         of the container, as it was named; `image_digest`: sha256 of what ran
    python        version of the engine's interpreter; `packages`: versions of what is installed
                  there, by name
    environment   variables that engines read, without secrets
    driver, gpus  of NVIDIA, where they were watched
    git           of the folder in which the run was started
    start_up_s    from starting its processes until the engine answered
    """

    commands: tuple[tuple[str, ...], ...] = ()
    image: str | None = None
    image_digest: str | None = None
    python: str | None = None
    packages: dict[str, str] = {}
    environment: dict[str, str] = {}
    driver: str | None = None
    gpus: tuple[str, ...] = ()
    git: GitState | None = None
    start_up_s: float | None = None

    @property
    def flags(self) -> dict[str, str]:
        """Flags of rank 0 by name, with _ for -; without those that say where it is. A flag alone
        is `true`; a minus before a number is a sign."""
        flags: dict[str, str] = {}
        name = ""
        for word in self.commands[0] if self.commands else ():
            if word.startswith("-") and word[1:2].strip("0123456789."):
                flag, sign, value = word.lstrip("-").partition("=")
                name = flag.replace("-", "_")
                flags[name] = value if sign else "true"
            elif name:
                flags[name] = word if flags[name] == "true" else f"{flags[name]} {word}"
        return {flag: value for flag, value in flags.items() if flag not in _OF_THE_PLACE}
