"""New outputs: large ones of NumPy, those of other libraries, and parts of a packed QKV."""

import math
import sys
from typing import Any

import ml_dtypes
import numpy as np

LINE = 64  # bytes of a cache line
# From so many bytes on an output begins at a line, since it may be written past the caches. Not less, though k_out beside a
# large q_out may be: to make it takes 3 us longer.
LARGE = 1 << 18


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """numpy.empty, but a large array begins at a cache line, of a buffer that it is a view of; NumPy's own mostly do not."""
    dtype = np.dtype(dtype)
    count = math.prod(shape)
    if count * dtype.itemsize < LARGE:
        return np.empty(shape, dtype)
    buffer = np.empty(count + LINE // dtype.itemsize, dtype)
    first = -buffer.__array_interface__["data"][0] % LINE // dtype.itemsize
    return buffer[first : first + count].reshape(shape)


def output_like(array: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array like `array`, by the empty_like of the library that its type comes from; NumPy's where it has none."""
    for base in type(array).__mro__:
        library = base.__module__.partition(".")[0]
        empty_like = getattr(sys.modules.get(library), "empty_like", None)
        # A script may hold somebody else's empty_like.
        if empty_like is not None and library != "__main__":
            return empty_like(array)
    return empty(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def views_of_qkv(qkv: Any, num_qo_heads: int, num_kv_heads: int, head_dim: int, groups: bool) -> tuple[Any, Any]:
    """Q and K within a packed QKV of the order "blocks" or "groups": [tokens, heads, head_dim], Q by groups one axis more."""
    if not hasattr(qkv, "reshape"):
        raise TypeError(f"in_place returns views of qkv, which a {type(qkv).__name__} can't give: it has no reshape")
    if groups:
        each = num_qo_heads // num_kv_heads
        heads = qkv.reshape(qkv.shape[0], num_kv_heads, each + 2, head_dim)
        return heads[:, :, :each], heads[:, :, each]
    heads = qkv.reshape(qkv.shape[0], num_qo_heads + 2 * num_kv_heads, head_dim)
    return heads[:, :num_qo_heads], heads[:, num_qo_heads : num_qo_heads + num_kv_heads]


def outputs_of_qkv(qkv: Any, num_tokens: int, heads: tuple[int, int], head_dim: int, dtype: str) -> tuple[Any, Any]:
    """New arrays [num_tokens, heads, head_dim] for the two counts of heads, of the library that qkv comes from."""
    q_shape, k_shape = ((num_tokens, count, head_dim) for count in heads)
    if hasattr(qkv, "new_empty"):
        return qkv.new_empty(q_shape), qkv.new_empty(k_shape)
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return empty(q_shape, numpy_dtype), empty(k_shape, numpy_dtype)
