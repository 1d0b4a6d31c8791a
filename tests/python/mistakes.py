"""Mistakes as users make them in calls of rope_pool_fused, for the test of the diagnosis.

A kind is a function that takes a Model (a geometry with the arrays of a right call) and returns the arguments that its mistake
changes. With it stand the code of the refusal and what the named cause must say: patterns, all of which must be found in it.
Where two mistakes leave the same arguments behind, one kind lists the patterns of both and either will do (`any_of`).
"""

import dataclasses
import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import ropepool


@dataclasses.dataclass
class Model:
    """A geometry, and the arrays of a call that is right."""

    name: str
    hq: int
    hk: int
    d: int
    tokens: int
    slots_in_pool: int = 160
    dtype: type = np.float32

    def __post_init__(self):
        self.q_size, self.kv_size = self.hq * self.d, self.hk * self.d
        self.qkv = np.ones((self.tokens, self.q_size + 2 * self.kv_size), self.dtype)
        self.pool_shape = (self.slots_in_pool, self.hk, self.d)

    def heads(self, x):
        return x.reshape(len(x), -1, self.d)

    def call(self, **changes):
        qkv, a, b = self.qkv, self.q_size, self.q_size + self.kv_size
        right = {
            "q": self.heads(qkv[:, :a]),
            "k": self.heads(qkv[:, a:b]),
            "v": self.heads(qkv[:, b:]),
            "positions": np.arange(10, 10 + self.tokens),
            "slots": np.random.default_rng(0).permutation(self.slots_in_pool)[: self.tokens].astype(np.int32),
            "k_pool": np.zeros(self.pool_shape, self.dtype),
            "v_pool": np.zeros(self.pool_shape, self.dtype),
            "head_dim": self.d,
            "num_qo_heads": self.hq,
            "num_kv_heads": self.hk,
            "rope_base": 10000.0,
        }
        return right | changes


MODELS = [
    Model("llama-3-8b", 32, 8, 128, 6),
    Model("smollm2-135m", 9, 3, 64, 12),
    Model("qwen2.5-0.5b", 14, 2, 64, 14),  # as many tokens as query heads
    Model("gemma-2-9b", 16, 8, 256, 8),  # as many tokens as key/value heads
    Model("mha-80", 16, 16, 80, 10),
]


@dataclasses.dataclass
class Kind:
    name: str
    code: str
    any_of: tuple[tuple[str, ...], ...]  # one of these groups: every pattern of it is in the cause
    make: Callable[[Model], dict]
    fits: Callable[[Model], bool]


KINDS: list[Kind] = []


def kind(code, *patterns, any_of=None, fits=lambda m: True):
    """Patterns may use the model: "{m.hq}"."""

    def register(make):
        KINDS.append(Kind(make.__name__, code, any_of or (patterns,), make, fits))
        return make

    return register


def gqa(m):
    return m.hq != m.hk


# ---- numbers of axes


@kind("RP001", "q was not split", "num_qo_heads")
def q_not_split_into_heads(m):
    return {"q": m.qkv[:, : m.q_size]}


@kind("RP001", "k was not split", "num_kv_heads")
def k_not_split_into_heads(m):
    return {"k": m.qkv[:, m.q_size : m.q_size + m.kv_size]}


@kind("RP001", "q is the whole packed QKV")
def q_is_the_projection(m):
    return {"q": m.qkv}


@kind("RP001", "batch axis", "batch, tokens, heads")
def batch_axis_not_folded(m):
    return {name: m.call()[name][None] for name in "qkv"}


@kind("RP001", "batch, heads", "attention")
def layout_of_attention(m):
    return {name: m.call()[name].swapaxes(0, 1)[None] for name in "qkv"}


@kind("RP001", "one token", "token axis")
def one_token_without_its_axis(m):
    return {"q": m.call()["q"][0], "k": m.call()["k"][0], "v": m.call()["v"][0]}


@kind("RP001", "k holds K and V")
def kv_projection_not_split(m):
    return {"k": m.qkv[:, m.q_size :]}


@kind("RP001", "folded into one axis")
def tokens_and_heads_in_one_axis(m):
    return {"q": m.call()["q"].reshape(-1, m.d)}


@kind("RP001", "flattened", "elements")
def v_flattened(m):
    return {"v": m.call()["v"].reshape(-1)}


@kind("RP001", r"\[tokens, 3, heads", fits=lambda m: not gqa(m))
def mha_qkv_not_unbound(m):
    return {"q": m.qkv.reshape(m.tokens, 3, m.hq, m.d)}


@kind("RP001", "k is Q's slice", "not split", fits=gqa)
def k_is_qs_slice_and_not_split(m):
    return {"k": m.qkv[:, : m.q_size]}


@kind("RP001", "in groups", fits=lambda m: m.hk > 1)
def q_heads_in_groups(m):
    return {"q": m.call()["q"].reshape(m.tokens, m.hk, m.hq // m.hk, m.d)}


@kind("RP001", "each head", "grouped-query", fits=gqa)
def kv_expanded_for_gqa(m):
    k = m.call()["k"]
    return {"k": np.repeat(k[:, :, None], m.hq // m.hk, axis=2)}


@kind("RP001", "one head of", "axis of heads")
def one_head_of_each_token(m):
    return {"q": m.call()["q"][:, 0]}


@kind("RP002", "positions has a batch axis")
def position_ids_of_a_batch(m):
    return {"positions": np.arange(m.tokens).reshape(2, -1)}


@kind("RP002", "positions has a batch axis")
def position_ids_of_one_sequence(m):
    return {"positions": np.arange(m.tokens)[None]}


@kind("RP002", "positions is a single number", "each of the {m.tokens} tokens")
def position_is_a_number(m):
    return {"positions": np.array(17)}


@kind("RP002", "slots is a single number", "each of the {m.tokens} tokens")
def slot_is_a_number(m):
    return {"slots": np.array(17)}


@kind("RP002", "M-RoPE")
def mrope_positions(m):
    return {"positions": np.tile(np.arange(m.tokens), (3, 1))}


@kind("RP002", "3 rows with a batch axis", "M-RoPE")
def mrope_positions_of_a_model(m):
    return {"positions": np.tile(np.arange(m.tokens), (3, 1, 1))}


def with_sections(m, positions):
    pairs, third = m.d // 2, m.d // 8
    rope = ropepool.Rope(10000.0, rotary_dim=m.d, sections=[pairs - 2 * third, third, third])
    return {"positions": positions, "rope": rope, "rope_base": None}


@kind("RP002", "3 rows with a batch axis", "M-RoPE")
def positions_of_a_model_for_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens), (3, 1, 1)))


@kind("RP007", "3 \\* {m.tokens} entries", "one after the other")
def flattened_positions_for_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens), 3))


@kind("RP007", "positions is transposed")
def transposed_positions_for_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens)[:, None], 3))


@kind("RP007", "4 rows", "3 axes", "within the text")
def positions_with_those_of_the_text(m):
    return with_sections(m, np.tile(np.arange(m.tokens), (4, 1)))


@kind("RP002", "4 rows with a batch axis", "within the text")
def positions_of_a_qwen_model_for_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens), (4, 1, 1)))


@kind("RP002", "3 rows with a batch axis", "padded batch")
def padded_positions_of_a_model_for_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens), (3, 2, 1)))


@kind("RP007", "4 \\* {m.tokens} entries", "within the text")
def flattened_positions_with_those_of_the_text(m):
    return with_sections(m, np.tile(np.arange(m.tokens), 4))


@kind("RP007", "positions has a batch axis")
def position_ids_for_sections(m):
    return with_sections(m, np.arange(m.tokens)[None])


@kind("RP007", "{m.tokens} tokens", "an axis")
def fewer_positions_for_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens - 1), (3, 1)))


@kind("RP007", "slots has", "whole prompt")
def slots_of_the_whole_prompt_beside_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens), (3, 1))) | {"slots": np.arange(2 * m.tokens, dtype=np.int32)}


@kind("RP007", "2 rows", "3 axes")
def too_few_rows_for_sections(m):
    return with_sections(m, np.tile(np.arange(m.tokens), (2, 1)))


@kind("RP007", "{m.tokens} tokens", "whole prompt")
def positions_of_the_whole_prompt_for_sections(m):
    return with_sections(m, np.tile(np.arange(3 * m.tokens + 1), (3, 1)))


@kind("RP002", "slots has a batch axis")
def slots_as_a_column(m):
    return {"slots": np.arange(m.tokens, dtype=np.int32)[:, None]}


@kind("RP002", "padded batch")
def position_ids_of_a_padded_batch(m):
    return {"positions": np.zeros((2, m.tokens), np.int64)}


@kind("RP002", "block table")
def block_table_as_slots(m):
    return {"slots": np.zeros((m.tokens, 5), np.int32)}


@kind("RP003", "pages", "16")
def pages_of_slots(m):
    return {name: np.zeros((40, 16, m.hk, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP003", "pages", "heads first", fits=lambda m: m.hk != 32)
def pages_heads_first(m):
    return {name: np.zeros((40, m.hk, 32, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP003", "layers")
def pools_of_all_layers(m):
    return {name: np.zeros((4, 512, m.hk, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP003", "K and V together")
def unified_pool_kv_first(m):
    pool = np.zeros((2, *m.pool_shape), m.dtype)
    return {"k_pool": pool, "v_pool": pool}


@kind("RP003", "K and V together", fits=lambda m: m.hk != 2)
def unified_pool_slots_first(m):
    pool = np.zeros((m.slots_in_pool, 2, m.hk, m.d), m.dtype)
    return {"k_pool": pool, "v_pool": pool}


@kind("RP003", any_of=(("2 layers", "K and V", "pages"),))
def pools_of_two_layers(m):
    return {name: np.zeros((2, *m.pool_shape), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP003", any_of=(("K and V", "pages of 2 slots"),))
def pools_in_pages_of_two(m):
    return {name: np.zeros((300, 2, m.hk, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP003", "pages")
def pages_of_a_unified_pool(m):
    # To flatten these would be a copy.
    pool = np.zeros((10, 2, 16, m.hk, m.d), m.dtype)
    return {"k_pool": pool[:, 0], "v_pool": pool[:, 1]}


@kind("RP003", "heads first", "sequences", fits=lambda m: m.hk != 2)
def static_cache_of_one_sequence(m):
    return {name: np.zeros((1, m.hk, 300, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP003", "K and V", "tensor parallelism")
def flat_pools_of_twice_the_width(m):
    return {name: np.zeros((160, 2 * m.hk * m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP003", "heads and lanes in one axis")
def pool_rows_flat(m):
    return {name: np.zeros((160, m.hk * m.d), m.dtype) for name in ("k_pool", "v_pool")}


# ---- q


@kind("RP004", "q and k are swapped", fits=gqa)
def q_and_k_swapped(m):
    return {"q": m.call()["k"], "k": m.call()["q"]}


@kind("RP004", "num_qo_heads and num_kv_heads are swapped", fits=gqa)
def head_counts_swapped(m):
    return {"num_qo_heads": m.hk, "num_kv_heads": m.hq}


@kind("RP004", "tensor parallelism", fits=lambda m: m.hk % 2 == 0)
def counts_of_the_whole_model(m):
    return {"num_qo_heads": m.hq * 2, "num_kv_heads": m.hk * 2}


@kind("RP004", "heads first", fits=lambda m: m.tokens != m.hq)
def q_heads_first(m):
    return {"q": m.call()["q"].swapaxes(0, 1)}


@kind("RP004", "lanes before heads")
def q_lanes_first(m):
    return {"q": m.call()["q"].swapaxes(1, 2)}


@kind("RP004", "gate")
def q_with_its_gate(m):
    return {"q": np.ones((m.tokens, 2 * m.hq, m.d), m.dtype)}


@kind("RP004", "one rank's under tensor parallelism over 2")
def counts_of_one_rank(m):
    call = m.call()
    return {name: np.repeat(call[name], 2, axis=1) for name in "qkv"}


@kind("RP004", "cut short|another model", fits=lambda m: m.hk > 2 and m.hq % 2 == 0 and m.hq != 2 * m.hk)
def half_of_qs_heads(m):
    return {"q": m.call()["q"][:, : m.hq // 2]}


@kind("RP004", "whole packed QKV")
def q_with_all_heads(m):
    return {"q": m.heads(m.qkv)}


@kind("RP004", "runs on through K", fits=gqa)
def q_slice_runs_through_k(m):
    return {"q": m.heads(m.qkv[:, : m.q_size + m.kv_size])}


@kind("RP004", "head_dim", "wrong")
def head_dim_from_hidden_size(m):
    return {"head_dim": m.d // 2}


@kind("RP004", "split into", "heads of", fits=lambda m: m.d % 4 == 0)
def q_reshaped_with_another_head_dim(m):
    return {"q": m.call()["q"].reshape(m.tokens, m.hq * 2, m.d // 2)}


@kind("RP004", "K's", fits=gqa)
def q_is_ks_slice(m):
    return {"q": m.call()["k"]}


@kind("RP004", "another kind of layer|another model")
def q_of_another_layer_kind(m):
    return {"q": np.ones((m.tokens, m.hq, m.d * 2), m.dtype)}


# ---- k


@kind("RP005", "k has", "chunk", "not sliced")
def k_not_sliced_for_the_chunk(m):
    return {"k": np.ones((m.tokens + 7, m.hk, m.d), m.dtype)}


@kind("RP005", "k has", "padding")
def k_padded(m):
    return {"k": np.ones((16, m.hk, m.d), m.dtype)}


@kind("RP005", "whole model's|another model")
def num_kv_heads_of_a_pool_that_agrees(m):
    return {"num_kv_heads": m.hk + 1}


@kind("RP005", "K and V were repeated", fits=gqa)
def kv_repeated_for_gqa(m):
    k = np.repeat(m.call()["k"], m.hq // m.hk, axis=1)
    return {"k": k, "v": k.copy()}


@kind("RP005", "Q's slice|repeated", fits=gqa)
def k_from_the_start_of_qkv(m):
    return {"k": m.heads(m.qkv[:, : m.q_size])}


@kind("RP005", "K and V unsplit|K and V")
def k_runs_through_v(m):
    return {"k": m.heads(m.qkv[:, m.q_size :])}


@kind("RP005", "heads first", fits=lambda m: m.tokens != m.hk)
def k_heads_first(m):
    return {"k": m.call()["k"].swapaxes(0, 1)}


@kind("RP005", "lanes before heads")
def k_lanes_first(m):
    return {"k": m.call()["k"].swapaxes(1, 2)}


@kind("RP005", "num_kv_heads", "whole model's", "tensor parallelism")
def kv_heads_of_the_whole_model(m):
    return {"num_kv_heads": m.hk * 4}


@kind("RP005", "another kind of layer|another model")
def k_of_another_layer_kind(m):
    return {"k": np.ones((m.tokens, m.hk, m.d + 16), m.dtype)}


@kind("RP005", "whole packed QKV")
def k_with_all_heads(m):
    return {"k": m.heads(m.qkv)}


# ---- v


@kind("RP006", "num_qo_heads \\+ num_kv_heads", "Q's data", "{both} heads", fits=gqa)
def kv_cut_from_zero_and_kv_size(m):
    # The seed page's mistake.
    return {"k": m.heads(m.qkv[:, : m.kv_size]), "v": m.heads(m.qkv[:, m.kv_size :])}


@kind("RP006", any_of=(("Q's slice", "repeated", "{m.hq} heads"),), fits=gqa)
def v_is_qs_slice(m):
    return {"v": m.heads(m.qkv[:, : m.q_size])}


@kind("RP006", any_of=(("Q's slice", "repeated", "{m.hq} heads"),), fits=gqa)
def v_repeated_for_gqa(m):
    return {"v": np.repeat(m.call()["v"], m.hq // m.hk, axis=1)}


@kind("RP006", "sliced from 0", "Q and K", fits=gqa)
def v_cut_from_zero(m):
    return {"v": m.heads(m.qkv[:, : m.q_size + m.kv_size])}


@kind("RP006", "sliced from kv_size", fits=lambda m: m.hq not in (m.hk, 2 * m.hk))
def v_alone_cut_from_kv_size(m):
    return {"v": m.heads(m.qkv[:, m.kv_size :])}


@kind("RP006", "K and V")
def v_from_q_size_to_the_end(m):
    return {"v": m.heads(m.qkv[:, m.q_size :])}


@kind("RP006", "v was not sliced", "chunk")
def v_not_sliced_for_the_chunk(m):
    return {"v": np.ones((m.tokens + 5, m.hk, m.d), m.dtype)}


@kind("RP006", "v was sliced once more|was sliced", "chunk")
def v_sliced_twice(m):
    return {"v": m.call()["v"][:-1]}


@kind("RP006", "lanes before heads")
def v_lanes_first(m):
    return {"v": m.call()["v"].swapaxes(1, 2)}


@kind("RP006", "heads first", fits=lambda m: m.tokens != m.hk)
def v_heads_first(m):
    return {"v": m.call()["v"].swapaxes(0, 1)}


@kind("RP006", "another arrangement|split into")
def v_reshaped_with_another_head_dim(m):
    return {"v": m.call()["v"].reshape(m.tokens, m.hk * 2, m.d // 2)}


@kind("RP006", "{extra} heads", "boundary|sliced from lane", fits=lambda m: m.hk > 2)
def v_boundary_one_head_off(m):
    return {"v": m.heads(m.qkv[:, m.q_size + m.kv_size - m.d :])}


@kind("RP006", "heads of {wide} lanes", "another kind of layer|MLA")
def v_of_another_layer_kind(m):
    return {"v": np.ones((m.tokens, m.hk, m.d + 32), m.dtype)}


# ---- one entry per token


@kind("RP007", "positions has", "whole prompt")
def positions_of_the_whole_prompt(m):
    return {"positions": np.arange(m.tokens + 100)}


@kind("RP007", "slots has", "whole prompt|padded")
def slots_of_the_whole_prompt(m):
    return {"slots": np.arange(m.tokens + 20, dtype=np.int32)}


@kind("RP007", "q, k and v were sliced|stripped of padding")
def positions_and_slots_of_the_padded_batch(m):
    return {"positions": np.arange(m.tokens + 9), "slots": np.arange(m.tokens + 9)}


@kind("RP007", "one entry for each sequence|each of .* sequences")
def positions_per_sequence(m):
    n = m.tokens // 2
    return {"positions": np.arange(n), "slots": np.arange(n)}


@kind("RP007", "page")
def slots_per_page(m):
    return {"slots": np.arange(m.tokens // 2, dtype=np.int32)}


@kind("RP007", "cumulative|too far")
def cumulative_lengths_as_positions(m):
    return {"positions": np.arange(m.tokens + 1)}


# ---- pools


@kind("RP008", "heads first")
def pools_heads_first(m):
    return {name: np.zeros((m.hk, m.slots_in_pool, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP008", "num_qo_heads", "{m.hq} heads", fits=gqa)
def pools_made_for_query_heads(m):
    return {name: np.zeros((64, m.hq, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP008", "lanes before heads")
def pools_lanes_first(m):
    return {name: np.zeros((64, m.d, m.hk), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP008", "side by side|K and V")
def pool_with_v_beside_k(m):
    return {name: np.zeros((64, m.hk, 2 * m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP008", "K and V")
def one_pool_with_v_beside_k(m):
    pool = np.zeros((64, m.hk, 2 * m.d), m.dtype)
    return {"k_pool": pool, "v_pool": pool}


@kind("RP008", "K and V")
def one_pool_with_v_heads_behind_k(m):
    pool = np.zeros((64, 2 * m.hk, m.d), m.dtype)
    return {"k_pool": pool, "v_pool": pool}


@kind("RP008", "pages of 16", "one axis", fits=lambda m: m.hk > 1)
def pages_with_flat_rows(m):
    return {name: np.zeros((10, 16, m.hk * m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP008", "whole model", "tensor parallelism")
def pools_of_the_whole_model(m):
    return {name: np.zeros((64, m.hk * 4, m.d), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP008", "another kind of layer|another model")
def pools_of_another_layer_kind(m):
    return {name: np.zeros((64, m.hk, m.d + 16), m.dtype) for name in ("k_pool", "v_pool")}


@kind("RP008", "pages of 16", fits=lambda m: m.hk > 1)
def unified_pages_with_flat_rows(m):
    # To flatten these would be a copy.
    pool = np.zeros((10, 2, 16, m.hk * m.d), m.dtype)
    return {"k_pool": pool[:, 0], "v_pool": pool[:, 1]}


@kind("RP009", "v_pool has 161 slots", "k_pool has 160")
def v_pool_with_a_padding_row(m):
    return {"v_pool": np.zeros((161, m.hk, m.d), m.dtype)}


@kind("RP009", "two pools|was sliced")
def v_pool_of_another_pool(m):
    return {"v_pool": np.zeros((80, m.hk, m.d), m.dtype)}


@kind("RP009", "heads first")
def v_pool_heads_first(m):
    return {"v_pool": np.zeros((m.hk, m.slots_in_pool, m.d), m.dtype)}


# ---- dtypes


def bf16(call, *names):
    return {name: call[name].astype(ml_dtypes.bfloat16) for name in names}


FLOATS = ("q", "k", "v", "k_pool", "v_pool")


@kind("RP010", "q and k were widened", "float32")
def q_and_k_widened_by_a_norm(m):
    return bf16(m.call(), "v", "k_pool", "v_pool")


@kind("RP010", "q alone was widened")
def q_widened_by_a_bias(m):
    return bf16(m.call(), "k", "v", "k_pool", "v_pool")


@kind("RP010", "q is float64", "k and v are float32, as are the pools")
def q_scaled_by_a_numpy_float(m):
    return {"q": m.call()["q"].astype(np.float64)}


@kind("RP010", "q and k are float64")
def q_and_k_float64(m):
    return {name: m.call()[name].astype(np.float64) for name in "qk"}


@kind("RP010", "v alone was narrowed")
def v_narrowed(m):
    return bf16(m.call(), "v")


@kind("RP010", "q alone was widened", "narrowed")
def q_and_pools_float32(m):
    return bf16(m.call(), "k", "v") | {"k_pool": np.zeros(m.pool_shape, np.float16)}


@kind("RP010", "v alone was widened")
def v_widened(m):
    return bf16(m.call(), "q", "k", "k_pool", "v_pool")


@kind("RP010", "float16 and bfloat16 are mixed")
def float16_and_bfloat16_mixed(m):
    return bf16(m.call(), *FLOATS) | {"v": m.call()["v"].astype(np.float16)}


@kind("RP010", "bits", "integers")
def v_bits_as_uint16(m):
    call = m.call() | bf16(m.call(), *FLOATS)
    return {name: call[name] for name in FLOATS} | {"v": call["v"].view(np.uint16)}


@kind("RP010", "v int32", "the pools float32")
def v_cast_to_an_index_type(m):
    return {"v": m.call()["v"].astype(np.int32)}


@kind("RP010", "q is an unsupported type", "v int32")
def q_of_objects_and_v_of_integers(m):
    return {"q": m.call()["q"].astype(object), "v": m.call()["v"].astype(np.int32)}


@kind("RP010", "q is int32, k int64, v int64")
def qkv_of_two_index_types(m):
    return {"q": m.call()["q"].astype(np.int32)} | {name: m.call()[name].astype(np.int64) for name in "kv"}


@kind("RP011", "q, k and v are int32", "k_pool and v_pool are float32")
def qkv_cast_to_an_index_type(m):
    return {name: m.call()[name].astype(np.int32) for name in "qkv"}


@kind("RP011", "pools are float32", "default")
def pools_with_the_default_dtype(m):
    return bf16(m.call(), "q", "k", "v")


@kind("RP011", "q, k and v are float64", "k_pool and v_pool are float32")
def qkv_float64(m):
    return {name: m.call()[name].astype(np.float64) for name in "qkv"}


@kind("RP011", "q, k and v hold uint16", "bits")
def qkv_as_bits(m):
    call = m.call() | bf16(m.call(), *FLOATS)
    return {name: call[name] for name in FLOATS} | {name: call[name].view(np.uint16) for name in "qkv"}


@kind("RP011", "q, k and v were narrowed|default")
def qkv_narrowed(m):
    return {name: m.call()[name].astype(np.float16) for name in "qkv"}


@kind("RP011", "uint16", "bits")
def pools_of_bits(m):
    pools = {name: np.zeros(m.pool_shape, np.uint16) for name in ("k_pool", "v_pool")}
    return bf16(m.call(), "q", "k", "v") | pools


@kind("RP011", "two different 16-bit types")
def pools_of_the_other_half_type(m):
    pools = {name: np.zeros(m.pool_shape, np.float16) for name in ("k_pool", "v_pool")}
    return bf16(m.call(), "q", "k", "v") | pools


@kind("RP011", "quantised")
def pools_of_float8(m):
    return {name: np.zeros(m.pool_shape, ml_dtypes.float8_e4m3fn) for name in ("k_pool", "v_pool")}


@kind("RP011", "v_pool is float64")
def v_pool_without_a_dtype(m):
    return {"v_pool": np.zeros(m.pool_shape)}


@kind("RP012", "float64", "default")
def everything_float64(m):
    return {name: m.call()[name].astype(np.float64) for name in FLOATS}


@kind("RP012", "other byte order")
def everything_big_endian(m):
    return {name: m.call()[name].astype(">f4") for name in FLOATS}


@kind("RP012", "bits", "quantised")
def everything_bits(m):
    return {name: m.call()[name].astype(np.uint16) for name in FLOATS}


@kind("RP012", "bits", "quantised")
def everything_int16(m):
    return {name: m.call()[name].astype(np.int16) for name in FLOATS}


@kind("RP013", "slots is float64")
def slots_by_division(m):
    return {"slots": np.arange(m.tokens) / 1}


@kind("RP013", "unsigned")
def slots_unsigned(m):
    return {"slots": np.arange(m.tokens, dtype=np.uint32)}


@kind("RP013", "empty list")
def slots_from_an_empty_list(m):
    none = {name: m.call()[name][:0] for name in ("q", "k", "v", "positions")}
    return none | {"slots": np.array([])}


@kind("RP013", "mask")
def mask_as_slots(m):
    return {"slots": np.ones(m.tokens, bool)}


@kind("RP013", "positions is a mask")
def mask_as_positions(m):
    return {"positions": np.ones(m.tokens, bool)}


@kind("RP013", "positions is float32")
def positions_cast_with_the_model(m):
    return {"positions": m.call()["positions"].astype(np.float32)}


# ---- numbers


def without(m, **changes):
    """Shapes that go along with a count that is wrong."""
    call = m.call()
    hq, hk, d = (
        changes.get(name, default) for name, default in (("num_qo_heads", m.hq), ("num_kv_heads", m.hk), ("head_dim", m.d))
    )
    shapes = {"q": (m.tokens, hq, d), "k": (m.tokens, hk, d), "v": (m.tokens, hk, d)}
    shapes |= dict.fromkeys(("k_pool", "v_pool"), (m.slots_in_pool, hk, d))
    return call | {name: np.zeros(shape, m.dtype) for name, shape in shapes.items()} | changes


@kind("RP014", "head_dim = 0", "config")
def head_dim_missing(m):
    return without(m, head_dim=0)


@kind("RP014", "num_kv_heads = 0")
def fewer_kv_heads_than_ranks(m):
    return without(m, num_kv_heads=0)


@kind("RP014", "odd")
def head_dim_odd(m):
    return without(m, head_dim=m.d + 1)


@kind("RP015", "rope_base = 0", "config")
def rope_theta_missing(m):
    return {"rope_base": 0}


@kind("RP015", "neither rope_base nor rope")
def rope_base_left_out(m):
    return {"rope_base": None}


@kind("RP015", "both given")
def rope_and_its_base(m):
    return {"rope": ropepool.Rope(10000.0, rotary_dim=m.d)}


@kind("RP015", "overflow", "infinity")
def scaled_base_overflowed(m):
    return {"rope_base": float("inf")}


@kind("RP015", "below 0")
def dynamic_ntk_below_the_trained_length(m):
    return {"rope_base": -1234.5}


# ---- memory


@kind("RP016", "q is transposed", "axis 0|axis 1")
def q_stored_lanes_first(m):
    return {"q": np.ones((m.tokens, m.d, m.hq), m.dtype).swapaxes(1, 2)}


@kind("RP016", "k takes one lane in 2")
def k_every_second_lane(m):
    return {"k": np.ones((m.tokens, m.hk, 2 * m.d), m.dtype)[..., ::2]}


@kind("RP016", "slots takes one element in 5", "column")
def slots_are_a_column_of_a_table(m):
    return {"slots": np.zeros((m.tokens, 5), np.int32)[:, 0]}


@kind("RP016", "positions", "broadcast")
def position_broadcast(m):
    return {"positions": np.broadcast_to(np.int64(7), m.tokens)}


@kind("RP016", "slots is reversed")
def slots_reversed(m):
    return {"slots": m.call()["slots"][::-1]}


@kind("RP016", "packed bytes|record")
def k_pool_in_packed_bytes(m):
    size = int(np.prod(m.pool_shape)) * 4
    return {"k_pool": np.zeros(size + 1, np.uint8)[1:].view(m.dtype).reshape(m.pool_shape)}


@kind("RP016", "transposed")
def pools_stored_lanes_first(m):
    pools = np.zeros((2, m.slots_in_pool, m.d, m.hk), m.dtype).swapaxes(2, 3)
    return {"k_pool": pools[0], "v_pool": pools[1]}


@kind("RP016", "v_pool takes one lane in 2")
def pool_of_interleaved_lanes(m):
    return {"v_pool": np.zeros((m.slots_in_pool, m.hk, 2 * m.d), m.dtype)[..., ::2]}


@kind("RP016", "k_out takes one lane in 2")
def output_of_interleaved_lanes(m):
    return {"k_out": np.zeros((m.tokens, m.hk, 2 * m.d), m.dtype)[..., ::2]}


@kind("RP017", "q_out has", "longest step")
def output_for_the_longest_step(m):
    return {"q_out": np.empty((512, m.hq, m.d), m.dtype)}


@kind("RP017", "heads first", fits=lambda m: m.tokens != m.hk)
def output_heads_first(m):
    return {"k_out": np.empty((m.hk, m.tokens, m.d), m.dtype)}


@kind("RP017", "can't be written", "writeable")
def pool_locked(m):
    pool = np.zeros(m.pool_shape, m.dtype)
    pool.flags.writeable = False
    return {"k_pool": pool}


@kind("RP017", "q_out has", "another step")
def output_of_another_step(m):
    return {"q_out": np.empty((m.tokens + 3, m.hq, m.d), m.dtype)}


@kind("RP017", "swapped", fits=gqa)
def outputs_swapped(m):
    return {"q_out": np.empty_like(m.call()["k"]), "k_out": np.empty_like(m.call()["q"])}


@kind("RP017", "float64", "default")
def output_without_a_dtype(m):
    return {"q_out": np.empty(m.call()["q"].shape)}


@kind("RP017", "broadcast_to")
def output_broadcast(m):
    return {"k_out": np.broadcast_to(np.zeros(m.d, m.dtype), m.call()["k"].shape)}


@kind("RP017", "can't be written", "bytes|mapped")
def pool_from_bytes(m):
    size = int(np.prod(m.pool_shape)) * 4
    return {"v_pool": np.frombuffer(bytes(size), m.dtype).reshape(m.pool_shape)}


@kind("RP019", "k_pool and v_pool are one array")
def one_array_for_both_pools(m):
    pool = np.zeros(m.pool_shape, m.dtype)
    return {"k_pool": pool, "v_pool": pool}


@kind("RP019", "one buffer", fits=lambda m: not gqa(m))
def one_buffer_for_both_outputs(m):
    buffer = np.empty_like(m.call()["q"])
    return {"q_out": buffer, "k_out": buffer}


@kind("RP019", "one array", "in place", fits=lambda m: not gqa(m))
def q_is_k_in_place(m):
    q = np.ones_like(m.call()["q"])
    return {"q": q, "k": q, "q_out": q}


@kind("RP019", "v is k", "in place")
def v_is_k_in_place(m):
    k = np.ones_like(m.call()["k"])
    return {"k": k, "v": k, "k_out": k}


def packed_in_place(m, **changes):
    """The right call on a packed QKV of its own, turned in place."""
    call = Model(m.name, m.hq, m.hk, m.d, m.tokens).call()
    return call | {"q_out": call["q"], "k_out": call["k"]} | changes


@kind("RP019", "k is turned in place", "v reaches into k", "boundary", fits=lambda m: m.hk > 1)
def v_sliced_a_head_early_in_place(m):
    fresh = Model(m.name, m.hq, m.hk, m.d, m.tokens)
    begin = m.q_size + m.kv_size - m.d
    call = fresh.call(v=m.heads(fresh.qkv[:, begin : begin + m.kv_size]))
    return call | {"q_out": call["q"], "k_out": call["k"]}


@kind("RP019", "v lies in v_pool's memory")
def v_is_of_the_pool_in_place(m):
    pool = np.zeros(m.pool_shape, m.dtype)
    return packed_in_place(m, v=pool[3 : 3 + m.tokens], v_pool=pool)


@kind("RP019", "q_out lies in v's memory", "reused")
def output_in_v_beside_one_array_for_both_pools(m):
    buffer = np.zeros((m.tokens, m.hq + m.hk, m.d), m.dtype)
    pool = np.zeros(m.pool_shape, m.dtype)
    return {"v": buffer[:, m.hq - 1 : m.hq + m.hk - 1], "q_out": buffer[:, : m.hq], "k_pool": pool, "v_pool": pool}


@kind("RP019", "swapped", fits=lambda m: not gqa(m))
def outputs_swapped_in_place(m):
    call = m.call(q=m.call()["q"].copy(), k=m.call()["k"].copy())
    return call | {"q_out": call["k"], "k_out": call["q"]}


@kind("RP019", "other strides")
def output_begins_where_q_does(m):
    buffer = np.zeros((2 * m.tokens, m.hq, m.d), m.dtype)
    return {"q": buffer[: m.tokens], "q_out": buffer[::2]}


@kind("RP019", "views of one buffer", "boundary")
def pools_cut_with_a_common_row(m):
    pool = np.zeros((2 * m.slots_in_pool, m.hk, m.d), m.dtype)
    return {"k_pool": pool[: m.slots_in_pool], "v_pool": pool[m.slots_in_pool - 1 : -1]}


@kind("RP019", "off by|reused")
def output_shifted_by_a_token(m):
    buffer = np.ones((m.tokens + 1, m.hq, m.d), m.dtype)
    return {"q": buffer[1:], "q_out": buffer[:-1]}


@kind("RP019", "v_pool's memory|k_pool's memory")
def output_is_the_pool(m):
    pool = np.zeros(m.pool_shape, m.dtype)
    return {"k_pool": pool, "k_out": pool[: m.tokens]}


# ---- values


def with_slot(m, value, dtype=np.int64):
    slots = m.call()["slots"].astype(dtype)
    slots[2] = value
    return {"slots": slots}


@kind("RP020", "one past the last slot")
def slots_counted_from_one(m):
    return with_slot(m, m.slots_in_pool)


@kind("RP020", "padding", "2147483647")
def padding_is_the_largest_int(m):
    return with_slot(m, 2**31 - 1)


@kind("RP020", "-1 read as an unsigned")
def padding_through_uint32(m):
    return with_slot(m, 2**32 - 1)


@kind("RP020", "larger pool|all layers")
def slots_of_all_layers(m):
    return {"slots": m.call()["slots"].astype(np.int64) + 4 * m.slots_in_pool}


@kind("RP020", "positions and slots are swapped")
def positions_and_slots_swapped(m):
    return {"positions": m.call()["slots"].astype(np.int64), "slots": np.arange(5000, 5000 + m.tokens)}


@kind("RP020", "too small", "swapped")
def fresh_run_past_the_end(m):
    positions = np.random.default_rng(1).permutation(m.tokens)  # a decode batch: positions of as many requests
    return {"positions": positions, "slots": np.arange(m.tokens) + m.slots_in_pool - 2}


@kind("RP020", "no slots yet")
def pools_still_empty(m):
    return {name: np.zeros((0, m.hk, m.d), m.dtype) for name in ("k_pool", "v_pool")}


def with_position(m, value):
    positions = m.call()["positions"].copy()
    positions[1] = value
    return {"positions": positions}


@kind("RP021", "-1 read as an unsigned")
def padding_position_through_uint32(m):
    return with_position(m, 2**32 - 1)


@kind("RP021", "never filled|NaN")
def positions_never_filled(m):
    return with_position(m, -(2**63))


@kind("RP021", "two int32 positions, 5 and 6")
def int32_positions_read_as_int64(m):
    return with_position(m, 5 + (6 << 32))


@kind("RP021", "hash|address|time")
def hash_as_position(m):
    return with_position(m, 0x5DEECE66D1234)


@functools.cache
def seeded():
    """Every (kind, model) that makes sense, with its arguments."""
    return [(k, m, m.call() | k.make(m)) for k in KINDS for m in MODELS if k.fits(m)]


def patterns_of(k, m):
    """The kind's groups of patterns with the model's numbers in them."""
    words = {"m": m, "both": m.hq + m.hk, "extra": m.hk + 1, "wide": m.d + 32}
    return [[pattern.format(**words) for pattern in group] for group in k.any_of]
