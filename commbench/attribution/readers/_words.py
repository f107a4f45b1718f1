"""How PyTorch and the libraries below it call what commbench has names for."""

from __future__ import annotations

import re

from commbench.attribution.trace import UNKNOWN

# Longer words before those that they hold. A barrier of NCCL is an all-reduce that says so.
_OPERATIONS = {
    "barrier": "barrier",
    "crossdevicereduce": "allreduce",  # of vLLM
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reducescatter": "reducescatter",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "sendrecv": "sendrecv",
    "recv": "recv",
    "send": "send",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
}
_SEPARATORS = re.compile(r"[\W_]+")
_IDENTIFIERS = re.compile(r"[\w:]+")

# The words of a kernel's name that say that it communicates. "broadcast", "gather" or "reduce" alone computes.
COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|nvshmem|rocshmem|deep_ep|multimem|quick_?reduce|cross_device_reduce|symm_?mem"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)

_DTYPES = {
    **{"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16"},
    **{"byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64", "bool": "bool"},
    **{"unsigned char": "uint8", "signed char": "int8", "short int": "int16", "long int": "int64"},
    **{"float8_e4m3fn": "float8_e4m3", "float8_e4m3fnuz": "float8_e4m3"},
    **{"float8_e5m2": "float8_e5m2", "float8_e5m2fnuz": "float8_e5m2"},
}


def operation(word: str) -> str:
    """Return commbench's name of what `word` names ("_allgather_base", "gloo:all_reduce"), or UNKNOWN."""
    squeezed = _SEPARATORS.sub("", word.lower())
    return next((name for part, name in _OPERATIONS.items() if part in squeezed), UNKNOWN)


def dtype(word: str) -> str:
    """Return commbench's name of an element type ("c10::BFloat16", "long int"), or the word in lower case."""
    plain = word.lower().removeprefix("c10::").removeprefix("torch.")
    return _DTYPES.get(plain, plain)


def operation_of_kernel(name: str) -> str:
    """Return what a kernel does, by that identifier in its name and arguments which says that it communicates."""
    return operation(next(filter(COMMUNICATION.search, _IDENTIFIERS.findall(name)), ""))
