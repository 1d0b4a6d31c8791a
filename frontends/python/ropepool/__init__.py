"""ropepool: the KV-pool side of LLM inference, between the QKV projection and the attention output.

`rope_pool_fused` rotates Q and K and stores K and V in the KV pool, in one pass over memory; `rope_pool_fused_qkv` takes them
packed, `rope` has no pool, `write_kv` no rope, and `rerotate` turns keys that are in the pool already. What they refuse is a
`ContractError`; `check` lists all that is wrong with a call, and `explain` says what a refusal means and how to mend it.
"""

from ropepool._error import ContractError
from ropepool._ext import (
    DynamicNtkScaling,
    LayerNorm,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NtkAlphaScaling,
    ProportionalScaling,
    RMSNorm,
    Rope,
    YarnScaling,
    __version__,
    check,
    check_environment,
    compiled_simd_targets,
    errors,
    get_num_threads,
    rerotate,
    rope,
    rope_pool_fused,
    rope_pool_fused_qkv,
    set_num_threads,
    simd_target,
    simd_targets,
    write_kv,
)
from ropepool._reference import ErrorEntry, explain

__all__ = [
    "ContractError",
    "DynamicNtkScaling",
    "ErrorEntry",
    "LayerNorm",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "NtkAlphaScaling",
    "ProportionalScaling",
    "RMSNorm",
    "Rope",
    "YarnScaling",
    "__version__",
    "check",
    "compiled_simd_targets",
    "errors",
    "explain",
    "get_num_threads",
    "rerotate",
    "rope",
    "rope_pool_fused",
    "rope_pool_fused_qkv",
    "set_num_threads",
    "simd_target",
    "simd_targets",
    "write_kv",
]

# A setting that makes no sense should stop a program here, not at its first token.
check_environment()
del check_environment
