"""From a Hugging Face `config.json` to a model shape. The border: a bad file becomes `InputError`. No JAX
here.

One small function a `model_type`, each for the architecture as the `transformers` library builds it: what its
code fixes (biases, norms, tied tables) stands here, what the file decides is read from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxplan.errors import InputError
from jaxplan.workload.shape import Activation, ExpertShape, LatentAttentionShape, ModelShape

DEFAULT_TRAINING_SEQ = 8192  # the longest default; a model with a shorter context takes that


class Config:
    """A configuration with its place, so that every fault names file and key."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive whole number; null counts as absent."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self.place}: key {key} is missing", f"a positive whole number for {key}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{self.place}: key {key} is {value!r}", "a positive whole number")
        return value

    def count(self, key: str) -> int:
        """A whole number that may be absent, null or 0."""
        return self.integer(key) if self.values.get(key) else 0

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.place}: key {key} is {value!r}", "a number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise InputError(f"{self.place}: key {key} is {value!r}", "true or false")
        return value

    def refuse(self, key: str, why: str) -> InputError:
        return InputError(f"{self.place}: key {key} is {self.values.get(key)!r}", why)

    @property
    def name(self) -> str:
        given = self.values.get("_name_or_path")
        return given if isinstance(given, str) and given else Path(self.place).parent.name or "hf-model"

    @property
    def rope_theta(self) -> float:
        """`rope_theta`, or the same key of `rope_parameters` in files of newer versions."""
        nested = self.values.get("rope_parameters")
        if isinstance(nested, Mapping) and "rope_theta" in nested:
            return Config(nested, f"{self.place}: rope_parameters").number("rope_theta", 10_000.0)
        return self.number("rope_theta", 10_000.0)


def from_hf_config(config: Mapping[str, Any] | str | Path) -> ModelShape:
    """The shape that a configuration describes.

    Args:
        config: the parsed configuration, or the path of its JSON file or of the folder that holds
            `config.json`.

    Raises:
        InputError: no such file, no JSON, an unknown `model_type`, a key that is missing or of the wrong
            type.
    """
    read = Config(config, "config") if isinstance(config, Mapping) else _read(Path(config))
    kind = read.values.get("model_type")
    if not isinstance(kind, str) or kind not in READERS:
        what = f"{read.place}: key model_type is " + ("missing" if kind is None else repr(kind))
        raise InputError(what, f"one of {', '.join(READERS)}", "a model file of your own (--model my.toml)")
    try:
        return READERS[kind](read)
    except ValueError as error:
        raise InputError(f"{read.place}: {error}", f"a {kind} configuration") from error


def _read(path: Path) -> Config:
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", "a config.json") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}", "a config.json") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}", "a JSON object")
    return Config(values, str(path))


def _decoder(c: Config, **fixed: Any) -> ModelShape:
    """The common part: RMSNorm, RoPE, a gated feed-forward; `fixed` is what the architecture decides."""
    heads, embed = c.integer("num_attention_heads"), c.integer("hidden_size")
    common: dict[str, Any] = {
        "name": c.name,
        "layers": c.integer("num_hidden_layers"),
        "embed": embed,
        "heads": heads,
        "kv_heads": c.integer("num_key_value_heads", heads),
        "head_dim": c.integer("head_dim", embed // heads),
        "vocab": c.integer("vocab_size"),
        "norm_eps": c.number("rms_norm_eps", 1e-6),
        "rope_theta": c.rope_theta,
        "default_seq": min(DEFAULT_TRAINING_SEQ, c.integer("max_position_embeddings", DEFAULT_TRAINING_SEQ)),
        "source": c.place,
    }
    if "mlp" not in fixed:
        common["mlp"] = c.integer("intermediate_size")
    return ModelShape(**{**common, **fixed})


def _activation(c: Config, key: str, default: str, known: Mapping[str, Activation]) -> Activation:
    given = c.values.get(key) or default
    if given not in known:
        raise c.refuse(key, f"one of {', '.join(known)}")
    return known[given]


_GATED: dict[str, Activation] = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu"}


def _llama(c: Config) -> ModelShape:
    bias = c.flag("attention_bias", False)
    return _decoder(
        c,
        activation=_activation(c, "hidden_act", "silu", _GATED),
        tied_embeddings=c.flag("tie_word_embeddings", False),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=c.flag("mlp_bias", False),
    )


def _mistral(c: Config) -> ModelShape:
    return _decoder(c, tied_embeddings=c.flag("tie_word_embeddings", False))


def _mixtral(c: Config) -> ModelShape:
    experts = ExpertShape(
        experts=c.integer("num_local_experts"),
        top_k=c.integer("num_experts_per_tok"),
        mlp=c.integer("intermediate_size"),
    )
    return _decoder(c, tied_embeddings=c.flag("tie_word_embeddings", False), experts=experts)


def _qwen2(c: Config) -> ModelShape:
    return _decoder(c, tied_embeddings=c.flag("tie_word_embeddings", False), attention_bias=True)


def _qwen_experts(c: Config, shared: bool) -> ExpertShape:
    """Every layer must be sparse: a mixture of sparse and dense layers has no place in the shape."""
    if c.values.get("mlp_only_layers"):
        raise c.refuse("mlp_only_layers", "an empty list: single dense layers are not supported")
    if c.integer("decoder_sparse_step", 1) != 1:
        raise c.refuse("decoder_sparse_step", "1: every layer sparse")
    return ExpertShape(
        experts=c.integer("num_experts"),
        top_k=c.integer("num_experts_per_tok"),
        mlp=c.integer("moe_intermediate_size"),
        shared=1 if shared else 0,
        shared_mlp=c.integer("shared_expert_intermediate_size") if shared else 0,
        shared_gate=shared,
        normalize=c.flag("norm_topk_prob", False),
    )


def _qwen2_moe(c: Config) -> ModelShape:
    tied = c.flag("tie_word_embeddings", False)
    return _decoder(c, tied_embeddings=tied, attention_bias=True, experts=_qwen_experts(c, shared=True))


def _qwen3(c: Config) -> ModelShape:
    bias = c.flag("attention_bias", False)
    tied = c.flag("tie_word_embeddings", False)
    return _decoder(c, tied_embeddings=tied, attention_bias=bias, output_bias=bias, qk_norm=True)


def _qwen3_moe(c: Config) -> ModelShape:
    bias = c.flag("attention_bias", False)
    return _decoder(
        c,
        tied_embeddings=c.flag("tie_word_embeddings", False),
        attention_bias=bias,
        output_bias=bias,
        qk_norm=True,
        experts=_qwen_experts(c, shared=False),
    )


def _gemma(c: Config, post_norms: bool = False) -> ModelShape:
    bias = c.flag("attention_bias", False)
    return _decoder(
        c,
        head_dim=c.integer("head_dim", 256),
        activation="geglu",
        tied_embeddings=c.flag("tie_word_embeddings", True),
        attention_bias=bias,
        output_bias=bias,
        post_norms=post_norms,
    )


def _gemma2(c: Config) -> ModelShape:
    return _gemma(c, post_norms=True)


def _gpt2(c: Config) -> ModelShape:
    embed, heads = c.integer("n_embd"), c.integer("n_head")
    known: dict[str, Activation] = {
        "gelu_new": "gelu",
        "gelu": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "relu": "relu",
    }
    return ModelShape(
        name=c.name,
        layers=c.integer("n_layer"),
        embed=embed,
        mlp=c.integer("n_inner", 4 * embed),
        heads=heads,
        kv_heads=heads,
        head_dim=embed // heads,
        vocab=c.integer("vocab_size"),
        norm="layernorm",
        positions="learned",
        activation=_activation(c, "activation_function", "gelu_new", known),
        tied_embeddings=c.flag("tie_word_embeddings", True),
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_eps=c.number("layer_norm_epsilon", 1e-5),
        max_positions=c.integer("n_positions"),
        default_seq=min(DEFAULT_TRAINING_SEQ, c.integer("n_positions")),
        source=c.place,
    )


def _deepseek_v3(c: Config) -> ModelShape:
    """`e_score_correction_bias` is a router bias; the multi-token-prediction module is not part of the
    shape."""
    if c.integer("moe_layer_freq", 1) != 1:
        raise c.refuse("moe_layer_freq", "1: every layer after the dense ones sparse")
    latent = LatentAttentionShape(
        query_rank=c.count("q_lora_rank"),
        kv_rank=c.integer("kv_lora_rank"),
        rope_head_dim=c.integer("qk_rope_head_dim"),
        nope_head_dim=c.integer("qk_nope_head_dim"),
        value_head_dim=c.integer("v_head_dim"),
    )
    shared = c.count("n_shared_experts")
    experts = ExpertShape(
        experts=c.integer("n_routed_experts"),
        top_k=c.integer("num_experts_per_tok"),
        mlp=c.integer("moe_intermediate_size"),
        shared=shared,
        shared_mlp=c.integer("moe_intermediate_size") if shared else 0,
        first_dense_layers=c.count("first_k_dense_replace"),
        router_bias=True,
        scoring="sigmoid",
        normalize=c.flag("norm_topk_prob", True),
        scale=c.number("routed_scaling_factor", 2.5),
        choice_groups=c.integer("n_group", 8),
        chosen_groups=c.integer("topk_group", 4),
        aux_coefficient=c.number("aux_loss_alpha", 0.0001),     # arXiv:2412.19437, section 4.2
    )
    return _decoder(
        c,
        head_dim=latent.nope_head_dim + latent.rope_head_dim,
        tied_embeddings=c.flag("tie_word_embeddings", False),
        latent_attention=latent,
        experts=experts,
    )


READERS: dict[str, Callable[[Config], ModelShape]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gpt2": _gpt2,
    "deepseek_v3": _deepseek_v3,
}
