#!/usr/bin/env bash
# scripts/check-layers passes this tree and finds each kind of fault that is planted in a copy.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"

copy=$scratch/tree
mkdir "$copy"
cp -r "$root"/{.ci,README.md,bench,cmake,docs,include,scripts,src,tests} "$copy"

expect_exit 0 "$copy/scripts/check-layers"
[[ -z $output ]] || fail "a clean tree is not silent"

# planted FILE LINE REASON: LINE at the end of FILE is found, there and for that REASON.
planted() {
  local file=$copy/$1 number
  mkdir -p "${file%/*}"
  touch "$file"
  cp "$file" "$scratch/before"
  printf '%s\n' "$2" >>"$file"
  number=$(wc -l <"$file")
  expect_exit 1 "$copy/scripts/check-layers"
  expect_output "$1:$number: $3"
  (($(wc -l <<<"$output") == 1)) || fail "more than the planted fault"
  cp "$scratch/before" "$file"
}

planted src/core/planted.h '#include "codec/codec.h"' 'core stands below codec'
planted src/cache/planted.cpp '  #  include "attention/attention.h"' 'cache stands below attention'
planted src/runner/planted.cpp '#include "cli/table.h"' 'runner stands below cli'
planted src/core/planted.cpp '#include "../cli/table.h"' 'an include does not climb folders'
planted include/headq/planted.h '#include "core/env.h"' 'a public header'
for header in '<ggml.h>' '<llama.h>' '"gguf.h"' '<ggml-backend-impl.h>'; do
  planted src/codec/planted.cpp "#include $header" 'only the plugin and the runner'
  planted tests/codec/planted_test.cpp "#include $header" 'only the plugin and the runner'
done
planted src/attention/kernels_avx2.cpp '#include <vector>' 'a kernel file includes'
planted src/attention/kernels_avx512.cpp '#include "core/parallel.h"' 'a kernel file includes'
planted tests/oracle/planted.h '#include "codec/codec.h"' 'the oracle shares no code'
planted tests/codec/planted_test.cpp '  GTEST_''SKIP();' 'only tests/optional_data.h skips tests'
planted docs/development.md 'see /ro''ot/models' 'a path of one machine'
planted scripts/planted 'cd /wo''rk/main' 'a path of one machine'

# A weak symbol, as an inline function leaves one where it is not inlined.
build=$scratch/build
objects=$build/src/attention/CMakeFiles/headq_attention.dir
mkdir -p "$objects"
expect_exit 1 "$copy/scripts/check-layers" "$build"
expect_output 'holds no object of a kernel file'
compile() { c++ -O0 -c -x c++ - -o "$objects/kernels_avx2.cpp.o"; }
compile <<<'static int f() { return 1; } int g() { return f(); }'
expect_exit 0 "$copy/scripts/check-layers" "$build"
compile <<<'inline int f() { return 1; } int g() { return f(); }'
expect_exit 1 "$copy/scripts/check-layers" "$build"
expect_output 'a weak symbol'

expect_exit 2 "$copy/scripts/check-layers" --unknown
