#!/usr/bin/env bash
# Builds a virtual environment in which the real SGLang server runs on a machine without a GPU.
#
#   tests/rigs/sglang_cpu/build.sh VERSION        e.g.  build.sh 0.5.11
#
# The environment is .rigs/sglang-VERSION (git-ignored); a second run returns at once. What the versions
# share (torch, about 0.9 GB, and most requirements) is in .rigs/sglang-base, found through a .pth file;
# an environment of one version holds SGLang, transformers and tokenizers only (about 0.4 GB).
#
# Needs Python 3.11 as python3.11 (or $PYTHON) and pip's usual package index. torch must be a CPU build.
# CUDA-only packages are replaced by the stand-ins in stubs/, and testbed/ holds a plugin that lets
# DFLASH run without a GPU: both are read from this folder, not copied.
set -euo pipefail
version=${1:?usage: build.sh SGLANG_VERSION}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rigs=${DFLASH_RIGS:-$(cd "$here/../../.." && pwd)/.rigs}
python=${PYTHON:-python3.11}
# What one version pins, from its own metadata; the rest of its requirements is in requirements.txt.
case $version in
  0.5.11|0.5.12|0.5.12.post1) pins="transformers==5.6.0 tokenizers==0.22.2" ;;
  0.5.13|0.5.13.post1|0.5.14) pins="transformers==5.8.1 tokenizers==0.22.2" ;;
  0.5.15|0.5.15.post1|0.5.16|0.5.17) pins="transformers==5.12.1 tokenizers==0.22.2 xxhash zstandard" ;;
  0.5.23) pins="transformers==5.19.0 tokenizers==0.23.2 xxhash zstandard apache-tvm-ffi==0.1.11" ;;
  *) echo "no pins are known for SGLang $version: add a line to $0" >&2; exit 2 ;;
esac
# The stamp names everything that the environment was made from: another recipe means another build.
recipe=$(cat "$here/requirements.txt" "$here/build.sh" | sha256sum | cut -c1-16)
base=$rigs/sglang-base venv=$rigs/sglang-$version
[ "$(cat "$venv/.built" 2>/dev/null)" = "$recipe $here" ] && exit 0

mkdir -p "$rigs"
exec 9>"$rigs/.lock"
flock 9
[ "$(cat "$venv/.built" 2>/dev/null)" = "$recipe $here" ] && exit 0
site() { "$1/bin/python" -I -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }

common=$(sha256sum < "$here/requirements.txt" | cut -c1-16)
if [ "$(cat "$base/.built" 2>/dev/null)" != "$common" ]; then
  echo "building $base (torch, about 0.9 GB)" >&2
  rm -rf "$base"
  "$python" -m venv "$base"
  "$base/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$here/requirements.txt"
  "$base/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' ||
    { echo "this torch is not a CPU build" >&2; exit 3; }
  echo "$common" > "$base/.built"
fi

echo "building $venv" >&2
rm -rf "$venv"
"$python" -m venv --without-pip "$venv"
# shellcheck disable=SC2086  # the pins are words on purpose
"$base/bin/python" -m pip --python "$venv/bin/python" install -q --disable-pip-version-check --no-deps $pins "sglang==$version"
# The stand-ins' settings run first: TORCHDYNAMO_DISABLE and the like must be set before torch is imported.
printf '%s\n' "$here/stubs" "$here/testbed" "$(site "$base")" "import cpu_rig_env" > "$(site "$venv")/dflash_rig.pth"
echo "$recipe $here" > "$venv/.built"
echo "ready: $venv/bin/python runs SGLang $version on the CPU" >&2
