#!/usr/bin/env bash
# Packs a trimmed, real SGLang for an H200-class (sm90) machine that has PyTorch 2.11 + CUDA 13,
# Python 3.12 and no package registry. The kit stays under 64 MiB, in two parts that can travel one after the other
# (OUT/a about 34 MB, OUT/b about 25 MB), for when the repository itself is not small.
#
#   build.sh [SGLANG_VERSION=0.5.11] [OUT=.kit]      (0.5.11 .. 0.5.17 pin torch 2.11)
#
# Left out: FA3 (1 GB), sm100 kernels, xgrammar, llguidance, flashinfer cubins. So serve with
#   --attention-backend triton --sampling-backend pytorch --grammar-backend none --disable-piecewise-cuda-graph
# On the GPU machine, both parts there: `bash OUT/a/setup.sh && export PYTHONPATH=/tmp/site`.
set -euo pipefail
V=${1:-0.5.11}; OUT=${2:-.kit}; HERE=$(cd "$(dirname "$0")" && pwd)
rm -rf "$OUT"; mkdir -p "$OUT/whl"; W=$(mktemp -d)
get() { python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --abi cp312 --abi abi3 --abi none $(for n in 34 28 27 26 24 17 12 5; do echo --platform manylinux_2_${n}_x86_64; done) \
  --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$1" "$2" 2>&1 | { grep -v WARNING || true; }; }
get "$OUT/whl" "sglang==$V"
META=$(unzip -p "$OUT"/whl/sglang-*.whl '*/METADATA' | grep '^Requires-Dist' | grep -v extra)
pin() { echo "$META" | sed -n "s/^Requires-Dist: $1\(\[[a-z0-9]*\]\)\?==\([^; ]*\).*/\2/p" | head -1; }
KERNEL=$(pin sglang-kernel); FI=$(pin flashinfer_python); TF=$(pin transformers)
get "$W" "sglang-kernel==$KERNEL"; get "$OUT/whl" "flashinfer_python==$FI"; get "$OUT/whl" "transformers==$TF"
while read -r p; do get "$OUT/whl" "$p"; done <<'LIST'
tokenizers==0.22.2
pydantic==2.12.5
pydantic_core==2.41.5
fastapi==0.136.3
starlette
orjson
msgspec
pyzmq
uvicorn
setproctitle
pybase64
python-multipart
jsonschema
jsonschema-specifications
referencing
rpds-py
openai==2.6.1
openai-harmony==0.0.4
jiter
distro
sniffio
compressed-tensors==0.14.0.1
loguru
gguf
dill
soundfile
cffi
pycparser
watchfiles
apache-tvm-ffi==0.1.9
typing-inspection
annotated-types
partial-json-parser
interegular
torch_memory_saver
asyncssh
LIST
python3 "$HERE/slim.py" "$OUT/whl"
(cd "$W" && unzip -q -o sglang_kernel-*.whl 'sgl_kernel/*' -x 'sgl_kernel/flash_ops.abi3.so' 'sgl_kernel/infllm_ops*' 'sgl_kernel/flashmla_ops*' 'sgl_kernel/sm100/*' 'sgl_kernel/testing/*' \
  && tar -cf - sgl_kernel | xz -6 -T0) > "$OUT/sgl_kernel_sm90.txz"
mkdir -p "$OUT/a/whl" "$OUT/b/whl"
mv "$OUT"/whl/{sglang,flashinfer_python,transformers}-*.whl "$OUT/b/whl/"; mv "$OUT"/whl/*.whl "$OUT/a/whl/"; rmdir "$OUT/whl"
mv "$OUT/sgl_kernel_sm90.txz" "$OUT/a/"; cp -r "$HERE/setup.sh" "$HERE/autostub.py" "$HERE/stubs" "$OUT/a/"; echo "$KERNEL" > "$OUT/a/kernel_version"
rm -rf "$W"; du -sh "$OUT"/*; test "$(du -sb "$OUT" | cut -f1)" -lt 67108864 || { echo "kit over 64 MiB" >&2; exit 1; }
