# Sourced by the scripts beside it: an engine's own virtual environment, .cache/engines/<name>, made once.
# They set `engine` (its name and the script's), `packages` (pinned) and `size` (what to expect), may define `finish`
# (what is left to do after pip), and call `install`.

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

die() {
    echo "scripts/engines/$engine: $1" >&2
    exit 1
}

current() {
    [[ -x $home/bin/python && -f $stamp && $(<"$stamp") == "$sum" ]]
}

suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

pip_install() {
    "$home/bin/python" -m pip install -qq "$@" ||
        die "pip failed, as it says above; check the network and pip's settings, then run this again"
}

finish() { :; }

install() {
    home=$root/.cache/engines/$engine
    stamp=$home/setup.stamp
    # The path is part of it: a virtual environment does not survive being moved.
    sum=$({ echo "$root"; cat -- "${BASH_SOURCE[0]}" "$root/scripts/engines/$engine"; } | cksum)
    if current; then return; fi
    [[ $(uname -sm) == 'Linux x86_64' ]] || die "its wheels are for Linux on x86-64 only"
    mkdir -p -- "$root/.cache/engines"
    if command -v flock >/dev/null; then
        exec 9>"$home.lock"
        flock 9 || true  # a file system may know no locks
        if current; then return; fi  # another script was at it, and did it
    fi
    local python output
    for python in python3.11 python3.12 python3.13 python3 ''; do
        if [[ -n $python ]] && suitable "$python"; then break; fi
    done
    [[ -n $python ]] || die "no Python 3.11 to 3.13 on PATH; install one with its venv module"

    echo "scripts/engines/$engine: installing ${packages[*]} into .cache/engines/$engine ($size, once)" >&2
    rm -rf -- "$home"
    output=$("$python" -m venv "$home" 2>&1) || die "$python cannot make a virtual environment: ${output##*$'\n'}"
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1
    pip_install "${packages[@]}"
    finish
    echo "$sum" >"$stamp"
}
