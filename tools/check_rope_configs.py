#!/usr/bin/env python3
"""Compare `ropepool rope` with what Hugging Face transformers makes of the same configs.

    tools/check_rope_configs.py [path of the tool]

Needs transformers and torch, not the ropepool package. For each model type of our table: its class's default config and scaled
ones, the frequencies and attention factor of its rotary embedding, and the pairs of its apply_rotary_pos_emb.
"""

import importlib
import inspect
import json
import math
import pathlib
import subprocess
import sys

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TOOL = sys.argv[1] if len(sys.argv) > 1 else "ropepool"
TABLE = pathlib.Path(__file__).resolve().parent.parent / "src" / "ops" / "rope_config_models.cpp"
MODELS = [line.split('"')[1] for line in TABLE.read_text().splitlines() if ".type = " in line and ".unsupported = " not in line]
# What published configs have, and their classes' defaults do not.
BESIDE = {
    "glm4_moe": {"head_dim": 128},
    "glm4v_text": {"partial_rotary_factor": 0.5},
    "glm4v_moe_text": {"head_dim": 128},
    "mixtral": {"head_dim": 128},
    "minimax": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "mistral4": {"partial_rotary_factor": 0.5},
}
# Their yarn is asked for truncate where rope_parameters has an entry for each layer type, and looks one level too high.
NO_TRUNCATE = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert", "modernbert-decoder")
SCALINGS = {
    "as it is": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 24.0,
        "truncate": False,
    },
    "mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def ours(config):
    run = subprocess.run([TOOL, "rope", "-", "--json"], input=json.dumps(config), capture_output=True, text=True)
    report = json.loads(run.stdout)
    if not report["ok"]:
        raise ValueError(report["error"]["message"])
    return report["ropes"]


def rotary_class(module):
    found = [
        cls
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if name.endswith("RotaryEmbedding")
        and cls.__module__ == module.__name__
        and "Vision" not in name
        and "Audio" not in name
    ]
    return min(found, key=lambda cls: len(cls.__name__)) if found else None


def theirs(config, module):
    """Layer type -> (inverse frequencies, attention factor)."""
    rotary = rotary_class(module)(config)
    if hasattr(rotary, "inv_freq"):
        return {None: (rotary.inv_freq, rotary.attention_scaling)}
    return {
        kind: (getattr(rotary, f"{kind}_inv_freq"), getattr(rotary, f"{kind}_attention_scaling")) for kind in rotary.layer_types
    }


def pairs_interleaved(module):
    """Whether 2i and 2i + 1 turn together: what the first lane of a rotated unit vector reaches."""
    for name in ("apply_rotary_pos_emb_interleave", "apply_rotary_pos_emb"):
        if name not in vars(module):
            continue
        x = torch.zeros(1, 1, 1, 8)
        x[..., 1] = 1.0  # the second lane: with lane 0, or with lane 5
        angles = torch.full((1, 1, 4 if "gpt_oss" in module.__name__ else 8), 0.5)
        function = getattr(module, name)
        tensors = [x, x] if "k" in inspect.signature(function).parameters else [x]
        y = function(*tensors, angles.cos(), angles.sin())
        y = y[0] if isinstance(y, tuple) else y
        touched = set(y[0, 0, 0].abs().gt(1e-6).nonzero().flatten().tolist())
        return touched in ({0, 1}, {0, 4})  # {0, 4}: brought into another order of lanes
    return None


def main():
    transformers.logging.set_verbosity_error()
    checked, failed = 0, 0
    for model_type in MODELS:
        if model_type not in CONFIG_MAPPING:
            print(f"{model_type}: not in transformers {transformers.__version__}")
            continue
        module = importlib.import_module(CONFIG_MAPPING[model_type].__module__.replace("configuration", "modeling"))
        for name, scaling in SCALINGS.items():
            given = {"rope_scaling": dict(scaling)} if scaling else {}
            if model_type in NO_TRUNCATE and scaling:
                given["rope_scaling"].pop("truncate", None)
            given |= BESIDE.get(model_type, {})
            try:
                config = CONFIG_MAPPING[model_type](**given)
                expected = theirs(config, module)
            except Exception as error:  # a type that the class does not take
                print(f"{model_type}, {name}: skipped, {type(error).__name__}: {str(error)[:80]}")
                continue
            written = json.loads(config.to_json_string(use_diff=False))
            written["model_type"] = model_type
            try:
                for rope in ours(written):
                    if None not in expected and rope["layer_type"] not in expected:
                        continue  # of layers that the default config has not
                    inverse, factor = expected[rope["layer_type"] if rope["layer_type"] in expected else None]
                    got = [pair["frequency"] for pair in rope["sets"][0]["pairs"]]
                    assert len(got) == len(inverse), (len(got), len(inverse))
                    for a, b in zip(got, inverse.tolist(), strict=True):
                        assert math.isclose(a, b, rel_tol=2e-6), (a, b)
                    assert math.isclose(rope["sets"][0]["attention_factor"], float(factor), rel_tol=1e-6)
                    interleaved = pairs_interleaved(module)
                    if interleaved is not None:
                        assert (rope["pairing"] == "interleaved") == interleaved, rope["pairing"]
                checked += 1
            except (AssertionError, ValueError, KeyError) as error:
                failed += 1
                print(f"{model_type}, {name}: {type(error).__name__} {error}")
    print(f"{checked} configs agree, {failed} do not")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
