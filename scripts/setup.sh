#!/usr/bin/env bash
# Sets up what `make` needs on a bare Debian or Ubuntu machine.
#   setup.sh venv DIR EXTRAS    a virtual environment with the project in it (editable)
#   setup.sh test-tools         sshd and tmux for the tests (installs them when root, else says how)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

apt_install() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $* ..."
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
            { apt-get update -qq >/dev/null 2>&1 &&
              DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
    else
        return 1
    fi
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    say "Python 3.11 or newer is needed and was not found. Next: apt install python3, or set PYTHON=/path/to/python3.11"
    exit 1
}

case ${1:-} in
venv)
    dir=$2 extras=$3
    python=$(find_python)
    if [ ! -x "$dir/bin/pip" ]; then
        rm -rf "$dir"
        if ! "$python" -m venv "$dir" >/dev/null 2>&1; then
            rm -rf "$dir"
            version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            apt_install "python$version-venv" ||
                { say "Python has no venv module. Next: sudo apt install python$version-venv"; exit 1; }
            "$python" -m venv "$dir"
        fi
    fi
    say "installing dflash-console into $dir (once) ..."
    "$dir/bin/pip" install -q --disable-pip-version-check -e ".[$extras]"
    ;;
test-tools)
    missing=()
    [ -x /usr/sbin/sshd ] || command -v sshd >/dev/null || missing+=(openssh-server)
    command -v ssh-keygen >/dev/null || missing+=(openssh-client)
    command -v tmux >/dev/null || missing+=(tmux)
    if [ ${#missing[@]} -gt 0 ]; then
        apt_install "${missing[@]}" ||
            say "not installed: ${missing[*]}; tests that need them are skipped. Next: sudo apt install ${missing[*]}"
    fi
    ;;
*)
    say "usage: setup.sh venv DIR EXTRAS | test-tools"
    exit 2
    ;;
esac
