"""`explain` knows what NumPy and torch say where they stumble over a mistake a step before the op would: their real words."""

import numpy as np
import pytest
import ropepool

QKV = np.ones((4, 768), np.float32)  # 8 query and 2 key/value heads of 64
POOL = np.zeros((128, 2, 64), np.float32)
SLOTS = np.array([5, 6, 7, 8])


def message_of(call):
    with pytest.raises(Exception) as caught:
        call()
    return f"Traceback (most recent call last):\n  ...\n{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("RP006", lambda: QKV[:, 128:].reshape(4, 2, 64)),
        ("RP008", lambda: POOL.__setitem__(SLOTS, np.ones((4, 10, 64)))),
        ("RP013", lambda: POOL.__setitem__(SLOTS / 1, np.ones((4, 2, 64)))),
        ("RP017", lambda: np.broadcast_to(np.float32(0), (4, 8, 64)).__setitem__(0, 1)),
    ],
)
def test_numpy(code, call):
    assert ropepool.explain(message_of(call))["code"] == code


def torch_calls():
    torch = pytest.importorskip("torch")
    qkv, pool, slots = torch.ones(4, 768), torch.zeros(128, 2, 64), torch.tensor([5, 6, 7, 8])
    half = pool.to(torch.bfloat16)
    q, kv = torch.ones(1, 8, 3, 4), torch.ones(1, 3, 3, 4)
    attend = torch.nn.functional.scaled_dot_product_attention
    return [
        ("RP005", lambda: attend(q, kv, kv, enable_gqa=True)),
        ("RP006", lambda: qkv[:, 128:].view(4, 2, 64)),
        ("RP006", lambda: qkv.split([512, 128, 64], -1)),
        ("RP008", lambda: pool.__setitem__(slots, torch.ones(4, 10, 64))),
        ("RP008", lambda: pool.index_copy_(0, slots, torch.ones(4, 10, 64))),
        ("RP010", lambda: attend(q, q.to(torch.bfloat16), q)),
        ("RP011", lambda: half.index_put_((slots,), torch.ones(4, 2, 64))),
        ("RP011", lambda: pool.index_copy_(0, slots, torch.ones(4, 2, 64).half())),
        ("RP013", lambda: pool.__setitem__(slots / 1, torch.ones(4, 2, 64))),
        ("RP016", lambda: torch.ones(4, 8, 64).transpose(0, 1).view(4, 512)),
        ("RP019", lambda: torch.zeros(1).expand(3).add_(1)),
    ]


def test_torch():
    for code, call in torch_calls():
        message = message_of(call)
        assert ropepool.explain(message)["code"] == code, message
