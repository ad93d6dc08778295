"""Hugging Face configurations: the published files give the catalogue's shapes, bad ones give one message.

The dictionaries hold the keys of the published `config.json` files that decide a shape, with their values.
"""

import dataclasses
import json

import pytest

from jaxplan.errors import InputError
from jaxplan.machine import catalogue
from jaxplan.workload.hf import from_hf_config
from jaxplan.workload.parameters import parameter_count

LLAMA3 = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
LLAMA3 |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rms_norm_eps": 1e-5}
LLAMA3 |= {
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
}

MIXTRAL = {"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
MIXTRAL |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "rms_norm_eps": 1e-5}
MIXTRAL |= {
    "rope_theta": 1e6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
}

QWEN3 = {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
QWEN3 |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 151936, "rms_norm_eps": 1e-6}
QWEN3 |= {"rope_theta": 1000000, "head_dim": 128, "attention_bias": False, "tie_word_embeddings": False}

QWEN3_MOE = QWEN3 | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
}
QWEN3_MOE |= {
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
QWEN3_MOE |= {"mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True}

GEMMA = {"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28}
GEMMA |= {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000}
GEMMA |= {"rms_norm_eps": 1e-6, "max_position_embeddings": 8192, "hidden_act": "gelu"}

GEMMA2 = GEMMA | {
    "model_type": "gemma2",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 42,
}
GEMMA2 |= {"num_key_value_heads": 8}

GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
GPT2 |= {"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": None}

DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
}
DEEPSEEK |= {
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "rms_norm_eps": 1e-6,
}
DEEPSEEK |= {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
DEEPSEEK |= {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
}
DEEPSEEK |= {
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
}
DEEPSEEK |= {"n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5}

NAMES = ("name", "source", "published_parameters", "default_seq")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA3, "llama3-8b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3, "qwen3-8b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (GEMMA, "gemma-7b"),
        (GEMMA2, "gemma2-9b"),
        (GPT2, "gpt2"),
        (DEEPSEEK, "deepseek-v3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_published_configurations_are_the_catalogues_shapes(config, name):
    read, known = from_hf_config(config), catalogue.model(name)
    same = {key: getattr(known, key) for key in NAMES}
    assert dataclasses.replace(read, **same) == known


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # published counts of mistralai/Mistral-7B-v0.1, Qwen/Qwen2.5-7B and Qwen/Qwen1.5-MoE-A2.7B
        (LLAMA3 | {"model_type": "mistral", "vocab_size": 32000}, 7_241_732_096),
        (
            {
                "model_type": "qwen2",
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152064,
            },
            7_615_616_512,
        ),
        (
            {
                "model_type": "qwen2_moe",
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "num_key_value_heads": 16,
                "vocab_size": 151936,
                "num_experts": 60,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
            },
            14_315_784_192,
        ),
    ],
    ids=["mistral", "qwen2", "qwen2_moe"],
)
def test_types_that_the_catalogue_lacks(config, parameters):
    assert parameter_count(from_hf_config(config)) == parameters


def test_files_and_folders(tmp_path):
    path = tmp_path / "my-llama" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA3))
    assert from_hf_config(path) == from_hf_config(str(path.parent))
    assert from_hf_config(path).name == "my-llama"
    assert from_hf_config(path).default_seq == 8192


def test_newer_files_nest_the_rotary_base():
    config = {k: v for k, v in LLAMA3.items() if k != "rope_theta"} | {"rope_parameters": {"rope_theta": 5e5}}
    assert from_hf_config(config).rope_theta == 500_000


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (LLAMA3 | {"model_type": "rwkv"}, ["model_type is 'rwkv'", "llama"]),
        ({}, ["model_type is missing"]),
        ({k: v for k, v in LLAMA3.items() if k != "hidden_size"}, ["key hidden_size is missing"]),
        (LLAMA3 | {"num_hidden_layers": "32"}, ["num_hidden_layers is '32'", "positive whole number"]),
        (LLAMA3 | {"num_hidden_layers": -1}, ["num_hidden_layers is -1"]),
        (LLAMA3 | {"num_key_value_heads": 7}, ["multiple of kv_heads"]),
        (LLAMA3 | {"hidden_act": "relu2"}, ["hidden_act is 'relu2'", "silu"]),
        (LLAMA3 | {"tie_word_embeddings": "no"}, ["tie_word_embeddings is 'no'", "true or false"]),
        (QWEN3_MOE | {"mlp_only_layers": [0]}, ["mlp_only_layers"]),
        (QWEN3_MOE | {"num_experts_per_tok": 200}, ["top_k"]),
    ],
)
def test_a_bad_configuration_is_one_message(config, words):
    with pytest.raises(InputError) as error:
        from_hf_config(config)
    for word in words:
        assert word in str(error.value)


def test_a_bad_file_names_itself(tmp_path):
    path = tmp_path / "config.json"
    for text, word in (("{", "not valid JSON"), ("[1]", "holds a list")):
        path.write_text(text)
        with pytest.raises(InputError, match=word) as error:
            from_hf_config(path)
        assert str(path) in str(error.value)
    with pytest.raises(InputError, match="cannot read"):
        from_hf_config(tmp_path / "nowhere" / "config.json")
