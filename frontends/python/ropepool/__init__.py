"""ropepool: the KV-pool side of LLM inference, between the QKV projection and the attention output.

`rope_pool_fused` rotates Q and K and stores K and V in the KV pool, in one pass over memory. What it refuses is a
`ContractError`; `check` lists all that is wrong with a call, and `explain` says what a refusal means and how to mend it.
"""

from ropepool._error import ContractError
from ropepool._ext import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NtkAlphaScaling,
    ProportionalScaling,
    Rope,
    YarnScaling,
    __version__,
    check,
    check_environment,
    compiled_simd_targets,
    errors,
    get_num_threads,
    rope_pool_fused,
    set_num_threads,
    simd_target,
    simd_targets,
)
from ropepool._reference import ErrorEntry, explain

__all__ = [
    "ContractError",
    "DynamicNtkScaling",
    "ErrorEntry",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "NtkAlphaScaling",
    "ProportionalScaling",
    "Rope",
    "YarnScaling",
    "__version__",
    "check",
    "compiled_simd_targets",
    "errors",
    "explain",
    "get_num_threads",
    "rope_pool_fused",
    "set_num_threads",
    "simd_target",
    "simd_targets",
]

# A setting that makes no sense should stop a program here, not at its first token.
check_environment()
del check_environment
