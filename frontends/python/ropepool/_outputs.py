"""Outputs for arrays that are not NumPy's, and for parts of a packed QKV."""

import sys
from typing import Any

import ml_dtypes
import numpy as np


def output_like(array: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array like `array`, by the empty_like of the library that its type comes from; NumPy's where it has none."""
    for base in type(array).__mro__:
        library = base.__module__.partition(".")[0]
        empty_like = getattr(sys.modules.get(library), "empty_like", None)
        # A script may hold somebody else's empty_like.
        if empty_like is not None and library != "__main__":
            return empty_like(array)
    return np.empty(shape, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def views_of_qkv(qkv: Any, num_qo_heads: int, num_kv_heads: int, head_dim: int, groups: bool) -> tuple[Any, Any]:
    """Q and K within a packed QKV of the order "blocks" or "groups": [tokens, heads, head_dim], Q by groups one axis more."""
    num_tokens = qkv.shape[0]
    if groups:
        each = num_qo_heads // num_kv_heads
        heads = qkv.reshape(num_tokens, num_kv_heads, each + 2, head_dim)
        return heads[:, :, :each], heads[:, :, each]
    heads = qkv.reshape(num_tokens, num_qo_heads + 2 * num_kv_heads, head_dim)
    return heads[:, :num_qo_heads], heads[:, num_qo_heads : num_qo_heads + num_kv_heads]


def outputs_of_qkv(qkv: Any, num_qo_heads: int, num_kv_heads: int, head_dim: int, groups: bool) -> tuple[Any, Any]:
    """New arrays for them, [tokens, heads, head_dim], without gaps."""
    shapes = [(qkv.shape[0], heads, head_dim) for heads in (num_qo_heads, num_kv_heads)]
    if isinstance(qkv, np.ndarray):
        return np.empty(shapes[0], qkv.dtype), np.empty(shapes[1], qkv.dtype)
    views = views_of_qkv(qkv, num_qo_heads, num_kv_heads, head_dim, groups)
    q, k = (output_like(view, shape, str(view.dtype)) for view, shape in zip(views, shapes, strict=True))
    return q.reshape(shapes[0]), k
