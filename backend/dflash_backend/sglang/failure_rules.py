"""Lines of a log that say why a start failed: pattern, plain words, next step; the most telling first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Words = Callable[[re.Match[str]], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason. ``text`` makes the plain words from the match."""

    kind: str
    pattern: re.Pattern[str]
    text: Words
    next_step: str


def _rule(kind: str, pattern: str, text: str | Words, next_step: str) -> Rule:
    words: Words = (lambda _: text) if isinstance(text, str) else text
    return Rule(kind, re.compile(pattern, re.IGNORECASE), words, next_step)


def _said(before: str, otherwise: str = "") -> Words:
    """``before`` with the first named part that matched behind it, or ``otherwise`` when none did."""

    def words(match: re.Match[str]) -> str:
        part = next((value for value in match.groups() if value), "").strip().rstrip(".,;")
        return f"{before} {part[:300]}" if part else otherwise or before

    return words


_NO_MODEL = "|".join(
    (
        r"(\S+) does not appear to have a file named config\.json",
        r"(\S+) is not a local folder and is not a valid model",
        r"Incorrect path_or_model_id: '([^']+)'",
        r"Can't load the configuration of '([^']+)'",
        r"Repo id must be in the form [^:]*: '([^']+)'",
        r"Repository Not Found for url: (\S+)",
        r"Unrecognized model in ([^\s,]+)",
        r"Cannot find any model weights with [`']?([^`'\s]+)",
        r"No such file or directory: '([^'\n]+(?:config\.json|\.safetensors|\.json))'",
        r"(?:RepositoryNotFoundError|HFValidationError)(?!.*(?:Repo id|for url))()",
        r"model path (\S+) (?:does not exist|not found)",
    )
)
_IN_USE = "|".join(
    (
        r"bind on address \('[^']*', (\d+)\)[^\n]*address already in use",
        r"address already in use \(addr='[^']*:(\d+)'",
        r"port (\d{2,5}) (?:is )?(?:already )?(?:in use|not available|occupied)",
        r"address already in use()",
    )
)

RULES: tuple[Rule, ...] = (
    _rule(
        "unknown-option",
        r"error: unrecognized arguments?: (.+)",
        _said("this SGLang does not know"),
        "options differ between releases: 'hosts check' shows the host's version, 'plan' the exact command",
    ),
    _rule(
        "bad-option",
        r"^(?:usage: )?[\w./ -]{0,80}(?:launch_server|sglang|serve|__main__)[\w./ -]{0,40}: error: (.+)",
        _said("the command line was refused:"),
        "correct the option in the profile; 'plan' shows the exact command",
    ),
    _rule(
        "out-of-memory",
        r"(?:CUDA|HIP|NPU) out of memory(?:\. Tried to allocate ([\d.]+ \w+))?|"
        r"OutOfMemoryError(?!: (?:CUDA|HIP|NPU) out)()",
        _said("GPU memory ran out: no room for", "GPU memory ran out"),
        "see what else is on the GPU; lower mem-fraction-static, context-length, max-running-requests or "
        "cuda-graph-max-bs in the profile, or use more GPUs",
    ),
    _rule(
        "out-of-memory",
        r"Not enough memory|Please try to increase --mem-fraction-static|memory capacity is unbalanced|"
        r"max_total_num_tokens.{0,60}(?:negative|too small|<= ?0)",
        "what is left beside the weights is too little for the KV pool",
        "see what else is on the GPU; raise mem-fraction-static if it is free, or lower context-length and "
        "max-running-requests in the profile",
    ),
    _rule(
        "out-of-host-memory",
        r"Cannot allocate memory|std::bad_alloc|DefaultCPUAllocator: can't allocate memory|^MemoryError\b",
        "the host's own memory ran out",
        "see the free memory of the host; stop other servers or lower max-total-tokens in the profile",
    ),
    _rule(
        "shared-memory",
        r"No space left on device.*(?:shm|shared)|unable to (?:open|allocate) shared memory|Bus error",
        "shared memory (/dev/shm) ran out",
        "in a container start it with --ipc=host or a larger --shm-size",
    ),
    _rule(
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "a disk on the host is full",
        "free space on the host, then start again",
    ),
    _rule(
        "port-in-use",
        _IN_USE,
        _said("the port is in use on the host:", "the port is in use on the host"),
        "see what listens there ('hosts check'), stop it or give the server another port",
    ),
    _rule(
        "driver",
        r"CUDA driver version is insufficient|driver/library version mismatch|"
        r"The NVIDIA driver on your system is too old|forward compatibility was attempted|"
        r"(?:CUDA|driver)[^\n]{0,60}version[^\n]{0,40}mismatch",
        "the NVIDIA driver does not fit this CUDA build",
        "upgrade the driver, or reboot after an upgrade; 'hosts check' shows driver and CUDA versions",
    ),
    _rule(
        "no-gpu",
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device|CUDA_ERROR_NO_DEVICE|"
        r"No accelerator \(CUDA.*available|Torch not compiled with CUDA enabled|invalid device ordinal",
        "the server found no GPU, or fewer than it needs",
        "check nvidia-smi on the host, CUDA_VISIBLE_DEVICES in the profile, and the container's GPU options",
    ),
    _rule(
        "kernel",
        r"no kernel image is available for execution",
        "a CUDA kernel was not built for this GPU",
        "install the SGLang kernel wheel for this GPU's architecture, or choose another attention backend",
    ),
    _rule(
        "gpu-fault",
        r"(an illegal memory access was encountered|CUDA error: [^\n]{1,120}|CUBLAS_STATUS_\w+|"
        r"device-side assert triggered|uncorrectable ECC error)",
        _said("the GPU reported an error:"),
        "look for Xid lines in dmesg; another attention backend or no CUDA graphs narrows it down",
    ),
    _rule(
        "gated-model",
        r"GatedRepoError|Access to model \S+ is restricted|(?:401|403) Client Error",
        "the model hub refused access to the model",
        "accept the model's terms and give the token as a secret reference in the profile's env",
    ),
    _rule(
        "no-model",
        _NO_MODEL,
        _said("no model at", "no model at the path given"),
        "check the target and drafter paths of the profile on the host; a name on a model hub needs network",
    ),
    _rule(
        "no-network",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to 'https://|"
        r"Name or service not known|Temporary failure in name resolution",
        "the model is not on the host and the model hub cannot be reached",
        "copy the model to the host and use its path in the profile",
    ),
    _rule(
        "plugin",
        r"(?:plugin|entry point)[^\n]{0,120}(?:failed|error|cannot|could not|refuse)|"
        r"(?:failed|error|cannot)[^\n]{0,60}(?:load|import)[^\n]{0,40}plugin",
        "a plugin failed to load",
        "'plugin status' shows whether the plugin fits this SGLang; 'plugin uninstall' takes it out",
    ),
    _rule(
        "missing-module",
        r"No module named '?([\w.]+)'?",
        _said("a Python module is not installed there:"),
        "check 'python' of the host in the configuration: is it the environment that has SGLang?",
    ),
    _rule(
        "library",
        r"^ImportError: ([^\n]{1,200})|undefined symbol: (\S+)|(\S+): cannot open shared object file",
        _said("a library does not fit:"),
        "reinstall SGLang and its kernel package in matching versions",
    ),
    _rule(
        "no-interpreter",
        r"^(?:[\w./-]*(?:sh|env|nohup|setsid|exec)\b[^\n]{0,40}?)?([\w./~-]*python[\d.]*): "
        r"(?:No such file or directory|command not found|not found|Permission denied)",
        _said("the Python interpreter cannot be run:"),
        "correct 'python' of the host in the configuration",
    ),
    _rule(
        "draft-config",
        r"^\w+(?:Error|Exception): ([^\n]{0,40}(?:DFLASH|DDTREE|speculative|draft)\b[^\n]{0,300})",
        _said("the drafter was refused:"),
        "'audit' shows what the drafter's config asks for and what this SGLang can do",
    ),
    _rule(
        "nccl",
        r"NCCL error[^\n]{0,160}|ncclSystemError|ncclUnhandledCudaError|"
        r"torch\.distributed[^\n]{0,80}time(?:d )?out",
        "the GPUs could not talk to each other (NCCL)",
        "check that no other job holds the GPUs; NCCL_DEBUG=INFO in the profile's env tells more",
    ),
    _rule(
        "watchdog",
        r"Watchdog (?:timeout|caught)|Scheduler watchdog",
        "the scheduler stopped answering and the watchdog ended it",
        "read the lines before it; raise watchdog-timeout only if a step really takes that long",
    ),
    _rule(
        "assertion",
        r"^AssertionError(?:: ([^\n]{1,200}))?",
        _said("a check inside SGLang failed:", "a check inside SGLang failed"),
        "the lines show where; often an option that does not go with another, or with this model",
    ),
)
