"""Settings without which SGLang does not start on a CPU; imported by the rig's .pth file at every start."""

import os

SETTINGS = {
    "TORCHDYNAMO_DISABLE": "1",  # no compiler here, and torch must not look into the triton stand-in
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads cost a busy machine most of its time
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)
