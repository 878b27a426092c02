"""Rewrites wheels without the parts that text serving never imports. Usage: slim.py WHEEL_DIR"""

import pathlib
import sys
import zipfile

# flashinfer stays whole: its norm kernels are compiled on the machine, from the sources in its wheel.
DROP = {
    "sglang-": ("sglang/multimodal_gen/", "sglang/test/", "sglang/srt/server/_core", "sglang/srt/grpc/_core"),
}
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    drop = next((d for prefix, d in DROP.items() if wheel.name.startswith(prefix)), None)
    if drop is None:
        continue
    with zipfile.ZipFile(wheel) as src:
        names = [n for n in src.namelist() if not n.startswith(drop)]
        with zipfile.ZipFile(wheel.with_suffix(".tmp"), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as dst:
            for n in names:
                data = src.read(n)
                if n.endswith(".dist-info/RECORD"):
                    lines = data.decode().splitlines(keepends=True)
                    data = "".join(x for x in lines if not x.startswith(drop)).encode()
                dst.writestr(n, data)
    wheel.with_suffix(".tmp").replace(wheel)
