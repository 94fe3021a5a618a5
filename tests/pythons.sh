#!/bin/bash
# Run the unit tests under the newest supported Python that is here, or under others:
#
#   pythons.sh [all | PYTHON...]   PYTHON is a command or a path
#
# Debian's own, those on PATH and pyenv's are found; of each minor version one is used, and not the
# one of .venv, which `make unit` has. `all` runs the versions between too: what they lack, the oldest
# lacks, and what they changed, the newest has. What the tests need is installed once for each, into
# INFERENCE_STORE_PYTHONS_CACHE.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
OLDEST=${OLDEST:-11} NEWEST=${NEWEST:-14} # of Python 3
cache=${INFERENCE_STORE_PYTHONS_CACHE:-$HOME/.cache/inference-store/pythons}
lock=$(cksum <requirements-dev.lock)
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
declare -A found=() # the interpreter of each version
declare -A minors=() # the version that stands for each minor version
summary=()

describe() { # PYTHON: print its version and its path, if it is supported
    "$1" -c "if True:
        import sys
        if not (3, $OLDEST) <= sys.version_info[:2] <= (3, $NEWEST):
            sys.exit('{} is Python {}.{}, which is not supported'.format(sys.executable, *sys.version_info))
        print('{}.{}.{}'.format(*sys.version_info), sys.executable)"
}

find_pythons() {
    local minor python description version
    tested=$(describe .venv/bin/python) tested=${tested%% *}
    minors[${tested%.*}]=$tested
    local candidates=(/usr/bin/python3)
    for ((minor = OLDEST; minor <= NEWEST; minor++)); do
        candidates+=("python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python3)
    done
    for python in "${candidates[@]}"; do
        description=$(describe "$python" 2>/dev/null) || continue
        version=${description%% *}
        # Debian's in any case, whatever .venv has of its minor version.
        if [ "$version" != "$tested" ] && { [ "$python" = /usr/bin/python3 ] || [ -z "${minors[${version%.*}]:-}" ]; }; then
            minors[${version%.*}]=$version
            found[$version]=${description#* }
        fi
    done
}

install() { # PYTHON FOLDER: make an environment with what the tests need, once, one at a time
    local handle
    mkdir -p "$cache"
    exec {handle}>"$cache/.lock"
    ! command -v flock >/dev/null || flock "$handle"
    [ -e "$2/complete" ] || make_environment "$@"
    exec {handle}>&-
}

make_environment() { # PYTHON FOLDER
    rm -rf "$2"
    "$1" -m venv "$2"
    "$2/bin/python" -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements-dev.lock
    touch "$2/complete"
}

# The package itself is in an environment of its own, over what is shared with other work trees.
install_package() { # PYTHON SHARED FOLDER
    local site='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$1" -m venv --without-pip "$3"
    echo "import site; site.addsitedir('$("$2/bin/python" -c "$site")')" >"$("$3/bin/python" -c "$site")/shared.pth"
    "$3/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation -e . -e ./client
}

run() { # VERSION PYTHON
    local shared="$cache/$1-${lock%% *}"
    echo "Python $1: $2"
    install "$2" "$shared"
    install_package "$2" "$shared" "$own/$1"
    # Which Python builds the wheel makes no difference to it: `make unit` builds it.
    "$own/$1/bin/python" -m pytest tests/unit -q -n 2 --max-worker-restart 0 --ignore=tests/unit/test_wheel.py
}

choose_newest() {
    local version newest
    newest=$(printf '%s\n' "${!found[@]}" "$tested" | sort -V | tail -n 1)
    for version in "${!found[@]}"; do
        [ "$version" = "$newest" ] || unset "found[$version]"
    done
}

if [ "$*" = all ]; then
    find_pythons
elif (($#)); then
    for python in "$@"; do
        description=$(describe "$python")
        found[${description%% *}]=${description#* }
    done
else
    find_pythons
    choose_newest
fi
failed=no
for version in $(printf '%s\n' "${!found[@]}" | sort -V); do
    began=$SECONDS
    set +e # not a condition, in which `set -e` has no effect inside
    (set -e && run "$version" "${found[$version]}")
    ended=$?
    set -e
    outcome=passed
    ((ended == 0)) || outcome=failed failed=yes
    summary+=("Python $version $outcome in $((SECONDS - began)) s: ${found[$version]}")
done
printf '%s\n' "${summary[@]:-no supported Python is here beside that of .venv}"
[ $failed = no ]
