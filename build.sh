#!/usr/bin/env bash
# Complete build: virtual environment, wheel and source distribution, smoke test of the wheel.
set -euo pipefail
cd "$(dirname "$0")"

cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
memory_gib=$(awk '/^MemTotal/ { print int($2 / 1048576) }' /proc/meminfo 2>/dev/null || true)

default_jobs() {
    # One process per core, eight at most, and 2 GiB of memory for each.
    local jobs=$((cores < 8 ? cores : 8))
    if [ -n "$memory_gib" ] && [ "$jobs" -gt $((memory_gib / 2)) ]; then
        jobs=$((memory_gib / 2))
    fi
    echo $((jobs > 0 ? jobs : 1))
}

usage() {
    cat <<HELP
Usage: bash build.sh [options]

Builds Treadle and tests the result. Artifacts appear in output/ (wheel and source distribution);
build/ holds the virtual environment of the build.

Options:
  -j N           run the smoke tests in N processes (default here: $(default_jobs); one per core,
                 eight at most, fewer when there is less than 2 GiB of memory for each)
  --clean        remove build/ and output/ first (by hand: rm -rf build/ output/)
  --offline DIR  install only from the wheels in DIR, never from the network
  -h, --help     print this text and exit

Environment variables: none are required. PYTHON names the interpreter (default python3, 3.11 or
newer).

Network: pip fetches hatchling, the packages under "dependencies" in pyproject.toml, and pytest,
pytest-xdist, pytest-timeout and hypothesis; nothing else is downloaded. To prefetch them:
  python3 -m pip download -d DIR . hatchling pytest pytest-xdist pytest-timeout hypothesis
HELP
}

fail() {
    echo "build.sh: $1" >&2
    echo "Try: bash build.sh -h" >&2
    exit 2
}

jobs=$(default_jobs)
clean=false
offline=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        -j) [ $# -ge 2 ] || fail "-j needs a number"; jobs=$2; shift 2 ;;
        -j*) jobs=${1#-j}; shift ;;
        --clean) clean=true; shift ;;
        --offline) [ $# -ge 2 ] || fail "--offline needs a directory"; offline=$2; shift 2 ;;
        --offline=*) offline=${1#--offline=}; shift ;;
        *) fail "unknown option $1" ;;
    esac
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || fail "-j needs a positive number, not '$jobs'"

pip_flags=(--disable-pip-version-check --quiet)
if [ -n "$offline" ]; then
    [ -d "$offline" ] || fail "--offline: no directory $offline"
    pip_flags+=(--no-index --find-links "$(cd "$offline" && pwd)")
fi

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "no interpreter '$python'; set PYTHON to Python 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is older than Python 3.11; set PYTHON to a newer one"

if $clean; then
    echo "[1/5] removing build/ and output/"
    rm -rf build/ output/
fi

echo "[2/5] creating build/venv"
mkdir -p build output
[ -x build/venv/bin/python ] || "$python" -m venv build/venv
venv=$PWD/build/venv/bin/python
"$venv" -m pip install "${pip_flags[@]}" hatchling pytest pytest-xdist pytest-timeout hypothesis

echo "[3/5] building wheel and source distribution into output/"
rm -f output/treadle-*
"$venv" -m hatchling build -d output

echo "[4/5] installing the wheel"
"$venv" -m pip install "${pip_flags[@]}" --force-reinstall --no-deps output/treadle-*.whl
"$venv" -m pip install "${pip_flags[@]}" output/treadle-*.whl

echo "[5/5] smoke test of the installed wheel, $jobs process(es)"
"$venv" -m pytest -q -n "$jobs" -p no:cacheprovider tests/test_smoke.py

echo "done:"
ls -l output
