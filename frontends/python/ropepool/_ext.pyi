from collections.abc import Sequence
from os import PathLike
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

class RMSNorm:
    def __init__(self, weight: SupportsDLPack | None = None, *, eps: float, unit_offset: bool = False) -> None: ...
    @property
    def weight(self) -> Any: ...
    @property
    def eps(self) -> float: ...
    @property
    def unit_offset(self) -> bool: ...

class LayerNorm:
    def __init__(self, weight: SupportsDLPack | None = None, *, eps: float) -> None: ...
    @property
    def weight(self) -> Any: ...
    @property
    def eps(self) -> float: ...

HeadNorm = RMSNorm | LayerNorm

class LinearScaling:
    def __init__(self, *, factor: float) -> None: ...
    @property
    def factor(self) -> float: ...

class DynamicNtkScaling:
    def __init__(self, *, factor: float, original_length: int, length: int) -> None: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_length(self) -> int: ...
    @property
    def length(self) -> int: ...

class NtkAlphaScaling:
    def __init__(self, *, alpha: float) -> None: ...
    @property
    def alpha(self) -> float: ...

class YarnScaling:
    def __init__(
        self,
        *,
        factor: float,
        original_length: int,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        truncate: bool = True,
        attention_factor: float | None = None,
        mscale: float | None = None,
        mscale_all_dim: float | None = None,
    ) -> None: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_length(self) -> int: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def attention_factor(self) -> float | None: ...
    @property
    def mscale(self) -> float | None: ...
    @property
    def mscale_all_dim(self) -> float | None: ...

class Llama3Scaling:
    def __init__(self, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_length: int) -> None: ...
    @property
    def factor(self) -> float: ...
    @property
    def low_freq_factor(self) -> float: ...
    @property
    def high_freq_factor(self) -> float: ...
    @property
    def original_length(self) -> int: ...

class LongRopeScaling:
    def __init__(
        self,
        *,
        short_factor: Sequence[float],
        long_factor: Sequence[float],
        original_length: int,
        factor: float,
        attention_factor: float | None = None,
        length: int | None = None,
    ) -> None: ...
    @property
    def short_factor(self) -> list[float]: ...
    @property
    def long_factor(self) -> list[float]: ...
    @property
    def original_length(self) -> int: ...
    @property
    def factor(self) -> float: ...
    @property
    def attention_factor(self) -> float | None: ...
    @property
    def length(self) -> int | None: ...

class ProportionalScaling:
    def __init__(self, *, proportion: float, factor: float = 1.0) -> None: ...
    @property
    def proportion(self) -> float: ...
    @property
    def factor(self) -> float: ...

Scaling = (
    LinearScaling | DynamicNtkScaling | NtkAlphaScaling | YarnScaling | Llama3Scaling | LongRopeScaling | ProportionalScaling
)

class Rope:
    def __init__(
        self,
        base: float | None = None,
        *,
        rotary_dim: int,
        rotary_offset: int = 0,
        pairing: Literal["neox", "interleaved"] = "neox",
        scaling: Scaling | None = None,
        sections: Sequence[int] | None = None,
        section_order: Literal["blocks", "interleaved"] = "blocks",
        attention_scale: float = 1.0,
        frequencies: Sequence[float] | None = None,
        cos_sin: SupportsDLPack | None = None,
    ) -> None: ...
    def __repr__(self) -> str: ...
    @staticmethod
    def from_config(
        config: dict[str, Any] | str | PathLike[str], *, layer_type: str | None = None, length: int | None = None
    ) -> Rope: ...
    @staticmethod
    def layer_types(config: dict[str, Any] | str | PathLike[str]) -> list[str]: ...
    @staticmethod
    def join(ropes: Sequence[Rope]) -> Rope: ...
    @property
    def rotary_dim(self) -> int: ...
    @property
    def rotary_offset(self) -> int: ...
    @property
    def pairing(self) -> Literal["neox", "interleaved"]: ...
    @property
    def num_sets(self) -> int: ...
    @property
    def num_axes(self) -> int: ...
    @property
    def table_rows(self) -> int | None: ...
    def frequencies(self, set: int = 0) -> list[float]: ...
    def attention_scale(self, set: int = 0) -> float: ...

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
    rope: Rope | None = None,
    rope_sets: SupportsDLPack | None = None,
    angles: Literal["exact", "float32"] = "exact",
    v_head_dim: SupportsIndex | None = None,
    q_bias: SupportsDLPack | None = None,
    k_bias: SupportsDLPack | None = None,
    v_bias: SupportsDLPack | None = None,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    q_scale: SupportsFloat | SupportsIndex = 1.0,
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
    rope: Rope | None = None,
    rope_sets: SupportsDLPack | None = None,
    angles: Literal["exact", "float32"] = "exact",
    v_head_dim: SupportsIndex | None = None,
    q_bias: SupportsDLPack | None = None,
    k_bias: SupportsDLPack | None = None,
    v_bias: SupportsDLPack | None = None,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    q_scale: SupportsFloat | SupportsIndex = 1.0,
    q_out: SupportsDLPack | None = None,
    k_out: SupportsDLPack | None = None,
) -> list[ContractError]: ...
def rope_pool_fused_qkv(
    qkv: SupportsDLPack,
    positions: SupportsDLPack,
    slots: SupportsDLPack,
    k_pool: _KPool,
    v_pool: _VPool,
    *,
    head_dim: SupportsIndex,
    num_qo_heads: SupportsIndex,
    num_kv_heads: SupportsIndex,
    rope_base: SupportsFloat | SupportsIndex | None = None,
    rope: Rope | None = None,
    rope_sets: SupportsDLPack | None = None,
    angles: Literal["exact", "float32"] = "exact",
    order: Literal["blocks", "groups"] = "blocks",
    bias: SupportsDLPack | None = None,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    q_scale: SupportsFloat | SupportsIndex = 1.0,
    in_place: bool = False,
    q_out: SupportsDLPack | None = None,
    k_out: SupportsDLPack | None = None,
) -> tuple[Any, Any, _KPool, _VPool]: ...
def rope(
    q: _Q,
    k: _K,
    positions: SupportsDLPack,
    *,
    head_dim: SupportsIndex,
    num_qo_heads: SupportsIndex,
    num_kv_heads: SupportsIndex,
    rope_base: SupportsFloat | SupportsIndex | None = None,
    rope: Rope | None = None,
    rope_sets: SupportsDLPack | None = None,
    angles: Literal["exact", "float32"] = "exact",
    q_out: _Q | None = None,
    k_out: _K | None = None,
) -> tuple[_Q, _K]: ...
def write_kv(
    k: SupportsDLPack,
    v: SupportsDLPack,
    slots: SupportsDLPack,
    k_pool: _KPool,
    v_pool: _VPool,
    *,
    head_dim: SupportsIndex,
    num_kv_heads: SupportsIndex,
    v_head_dim: SupportsIndex | None = None,
) -> tuple[_KPool, _VPool]: ...
def rerotate(
    k_pool: _KPool,
    slots: SupportsDLPack,
    old_positions: SupportsDLPack,
    new_positions: SupportsDLPack,
    *,
    head_dim: SupportsIndex,
    num_kv_heads: SupportsIndex,
    rope_base: SupportsFloat | SupportsIndex | None = None,
    rope: Rope | None = None,
    old_sets: SupportsDLPack | None = None,
    new_sets: SupportsDLPack | None = None,
    angles: Literal["exact", "float32"] = "exact",
) -> _KPool: ...
def errors() -> list[ErrorEntry]: ...
def find_error(text: str) -> ErrorEntry | None: ...
def set_num_threads(num_threads: int) -> None: ...
def get_num_threads() -> int: ...
def check_environment() -> None: ...
def simd_target() -> str: ...
def simd_targets() -> list[str]: ...
def compiled_simd_targets() -> list[str]: ...

__version__: str
