# Sourced by the scripts beside it: Debian packages unpacked into .cache/clusters/NAME once, without installing them,
# and processes told by a variable in their environment.
# They set `cluster` (the name) and `packages`, and call `unpack`; `$files` is then where the packages lie.

top=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
files=$top/.cache/clusters/$cluster
libraries=$files/usr/lib/$(uname -m)-linux-gnu

die() {
    echo "scripts/clusters/$cluster: $1" >&2
    exit 1
}

unpack() {
    [[ ! -e $files/unpacked ]] || return 0
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die 'it takes its programs from Debian; no apt-get here'
    mkdir -p -- "${files%/*}"
    if command -v flock >/dev/null; then
        exec 9>"$files.lock"
        flock 9
        [[ ! -e $files/unpacked ]] || { exec 9>&-; return 0; }
    fi
    local new=$files.new names deb
    rm -rf -- "$new" "$files"
    mkdir -p -- "$new/debs"
    # A release may lack one of them under this name, and then has it under another, or within another.
    names=$(apt-cache madison "${packages[@]}" 2>/dev/null | awk '{print $1}' | sort -u)
    [[ -n $names ]] || { apt-get update -qq >/dev/null 2>&1 || true
        names=$(apt-cache madison "${packages[@]}" 2>/dev/null | awk '{print $1}' | sort -u); }
    # shellcheck disable=SC2086 # one word each
    (cd "$new/debs" && apt-get -qq download $names >../apt.log 2>&1) ||
        die "apt-get cannot download it: $(tail -n 1 "$new/apt.log")"
    for deb in "$new"/debs/*.deb; do dpkg-deb -x "$deb" "$new"; done
    rm -rf -- "$new/debs"
    touch "$new/unpacked"
    mv -- "$new" "$files"
    exec 9>&-
}

# processes TEXT…: those of this user in whose environment each TEXT is the start of a variable
processes() {
    local each text
    for each in /proc/[0-9]*; do
        for text in "$@"; do
            tr '\0' '\n' <"$each/environ" 2>/dev/null | grep -qF -- "$text" || continue 2
        done
        echo "${each#/proc/}"
    done 2>/dev/null
}

free_ports() {
    python3 - "$1" <<'PYTHON'
import socket, sys

sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
PYTHON
}

# ended PID…: wait until they are, at most ten seconds
ended() {
    local _
    for _ in $(seq 100); do
        kill -0 "$@" 2>/dev/null || return 0
        sleep 0.1
    done
}
