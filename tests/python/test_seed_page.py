"""The page this project grew from: "v shape must match k shape", its example before and after."""

import numpy as np
import oracle
import pytest
import ropepool
from oracle import arguments, assert_same_bits, checked_call

N, D, HEADS, KV_HEADS = 4, 64, 8, 2
Q_SIZE, KV_SIZE = HEADS * D, KV_HEADS * D

# Word for word what the contract says.
MESSAGE = """\
v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)
cause: v has 10 heads = num_qo_heads + num_kv_heads (8 + 2): it was sliced from kv_size of the packed QKV instead of \
q_size + kv_size, and k from 0, so k holds Q's data
mend:  k = qkv[..., q_size : q_size + kv_size]; v = qkv[..., q_size + kv_size :]
RP006 v-shape-mismatch: ropepool explain RP006"""

# The first line and the related errors as the page prints them, placeholders and all.
PAGE = {
    "v shape must match k shape, got {v.shape} vs {k.shape}": "RP006",
    "rope_pool_fused expects q/k/v to be 3-D": "RP001",
    "rope_pool_fused expects positions/slots to be 1-D": "RP002",
    "rope_pool_fused expects pool tensors to be 3-D": "RP003",
    "q shape must be [num_tokens, num_qo_heads, head_dim], got {q": "RP004",
    "k shape must be [num_tokens, num_kv_heads, head_dim], got {k": "RP005",
}


def numpy_qkv():
    return np.random.default_rng(6).standard_normal((N, Q_SIZE + 2 * KV_SIZE), np.float32)


def before(qkv):
    """The page's cut, reshaped with -1 so that the wrong width reaches the op and not reshape's own error."""
    return {"k": qkv[:, :KV_SIZE].reshape(N, -1, D), "v": qkv[:, KV_SIZE:].reshape(N, -1, D)}


def after(qkv):
    return {
        "k": qkv[..., Q_SIZE : Q_SIZE + KV_SIZE].reshape(N, KV_HEADS, D),
        "v": qkv[..., Q_SIZE + KV_SIZE :].reshape(N, KV_HEADS, D),
    }


def call_with(qkv, cut, convert=lambda array: array):
    call = {
        name: convert(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments(N, D, HEADS, KV_HEADS).items()
    }
    return call | {"q": qkv[..., :Q_SIZE].reshape(N, HEADS, D)} | cut(qkv)


def assert_refused(call):
    with pytest.raises(ropepool.ContractError) as caught:
        ropepool.rope_pool_fused(**call)
    error = caught.value
    assert str(error) == MESSAGE
    assert [str(listed) for listed in ropepool.check(**call)] == [MESSAGE]
    assert (error.code, error.name, error.argument) == ("RP006", "v-shape-mismatch", "v")
    assert (error.expected, error.actual) == ("(4, 2, 64)", "(4, 10, 64)")


def test_before():
    call = call_with(numpy_qkv(), before)
    kept = oracle.copies(call)
    assert_refused(call)
    for name in ("q", "k", "v", "k_pool", "v_pool"):
        assert_same_bits(call[name], kept[name])


def test_after():
    call = call_with(numpy_qkv(), after)
    assert ropepool.check(**call) == []
    checked_call(call)


def test_after_without_a_copy():
    """Heads cut from [tokens, heads, head_dim] are views, read and rotated where they lie."""
    heads = numpy_qkv().reshape(N, HEADS + 2 * KV_HEADS, D)
    q, k, v = np.split(heads, [HEADS, HEADS + KV_HEADS], axis=1)
    expected = checked_call(call_with(numpy_qkv(), after))
    actual = checked_call(call_with(numpy_qkv(), after) | {"q": q, "k": k, "v": v, "q_out": q, "k_out": k})
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


def test_before_and_after_in_torch():
    torch = pytest.importorskip("torch")
    qkv = torch.from_numpy(numpy_qkv())
    assert_refused(call_with(qkv, before, torch.from_numpy))
    actual = ropepool.rope_pool_fused(**call_with(qkv, after, torch.from_numpy))
    for one, other in zip(actual, checked_call(call_with(numpy_qkv(), after)), strict=True):
        assert_same_bits(one.numpy(), other)


@pytest.mark.parametrize("text, code", PAGE.items())
def test_the_pages_texts_are_explained(text, code):
    assert ropepool.explain(text)["code"] == code
    assert ropepool.explain(f"Traceback ...\nValueError: {text}\n")["code"] == code
