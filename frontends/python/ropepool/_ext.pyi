from typing import Any, Literal, Protocol, SupportsFloat, SupportsIndex, TypeVar

from ropepool._error import ContractError
from ropepool._reference import ErrorEntry

class SupportsDLPack(Protocol):
    """An array: NumPy's, PyTorch's, or any other that exports DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

_Q = TypeVar("_Q", bound=SupportsDLPack)
_K = TypeVar("_K", bound=SupportsDLPack)
_KPool = TypeVar("_KPool", bound=SupportsDLPack)
_VPool = TypeVar("_VPool", bound=SupportsDLPack)

def rope_pool_fused(
    q: _Q,
    k: _K,
    v: SupportsDLPack,
    positions: SupportsDLPack,
    slots: SupportsDLPack,
    k_pool: _KPool,
    v_pool: _VPool,
    *,
    head_dim: SupportsIndex,
    num_qo_heads: SupportsIndex,
    num_kv_heads: SupportsIndex,
    rope_base: SupportsFloat | SupportsIndex | None = None,
    rope: None = None,
    angles: Literal["exact", "float32"] = "exact",
    q_out: _Q | None = None,
    k_out: _K | None = None,
) -> tuple[_Q, _K, _KPool, _VPool]: ...
def check(
    q: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    positions: SupportsDLPack,
    slots: SupportsDLPack,
    k_pool: SupportsDLPack,
    v_pool: SupportsDLPack,
    *,
    head_dim: SupportsIndex,
    num_qo_heads: SupportsIndex,
    num_kv_heads: SupportsIndex,
    rope_base: SupportsFloat | SupportsIndex | None = None,
    rope: None = None,
    angles: Literal["exact", "float32"] = "exact",
    q_out: SupportsDLPack | None = None,
    k_out: SupportsDLPack | None = None,
) -> list[ContractError]: ...
def errors() -> list[ErrorEntry]: ...
def find_error(text: str) -> ErrorEntry | None: ...
def set_num_threads(num_threads: int) -> None: ...
def get_num_threads() -> int: ...
def check_environment() -> None: ...
def simd_target() -> str: ...
def simd_targets() -> list[str]: ...
def compiled_simd_targets() -> list[str]: ...

__version__: str
