# Checks for the tests of this folder, which source it; the first one that does not hold ends the
# test. Output of the command under test stays in $output.
# shellcheck shell=bash

# shellcheck disable=SC2034  # read by the tests
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  printf 'FAILED: %s\n%s\n' "$*" "${output:-}" >&2
  exit 1
}

# expect_exit STATUS COMMAND...: runs COMMAND, whose output and messages go to $output.
expect_exit() {
  local expected=$1 status=0
  shift
  output=$("$@" 2>&1) || status=$?
  ((status == expected)) || fail "$* ended with $status instead of $expected"
}

expect_output() { [[ $output == *"$1"* ]] || fail "no '$1' in the output"; }

expect_no_file() { [[ ! -e $1 ]] || fail "$1 is there"; }

expect_file() { [[ -e $1 ]] || fail "$1 is not there"; }
