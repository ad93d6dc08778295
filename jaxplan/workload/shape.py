"""What is trained, as sizes only: the model's shape, the batch, the optimizer. No JAX here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Literal

Norm = Literal["rmsnorm", "layernorm"]
Positions = Literal["rope", "learned"]
Activation = Literal["swiglu", "geglu", "gelu", "relu"]
GATED: tuple[Activation, ...] = ("swiglu", "geglu")    # these have a gate matrix beside the up matrix
Scoring = Literal["softmax", "sigmoid"]
Dispatch = Literal["capacity", "dropless"]
SCORINGS: tuple[Scoring, ...] = ("softmax", "sigmoid")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class ExpertShape:
    """Mixture-of-Experts feed-forward: `top_k` of `experts` experts of width `mlp`, plus `shared` always-on ones.

    The router's outputs become scores: their softmax, or each one's sigmoid (DeepSeek-V3, arXiv:2412.19437, section
    2.1.2). A token goes to the experts of its `top_k` best scores, among the best `chosen_groups` of `choice_groups`
    equal groups of experts; their scores weight what they return.

    Attributes:
        router_bias: a bias on the scores by which experts are chosen, but not on the weights (the same, equation 16).
        shared_gate: a scalar gate on the shared experts (Qwen2 MoE).
        normalize: the weights of a token's experts add up to one (Mixtral, arXiv:2401.04088, section 2.1).
        scale: what they are multiplied by in the end.
        aux_coefficient: of the load-balancing loss (Fedus et al. 2021, arXiv:2101.03961, section 2.2: 0.01).
    """

    experts: int
    top_k: int
    mlp: int
    shared: int = 0
    shared_mlp: int = 0
    first_dense_layers: int = 0
    router_bias: bool = False
    shared_gate: bool = False
    scoring: Scoring = "softmax"
    normalize: bool = True
    scale: float = 1.0
    choice_groups: int = 1
    chosen_groups: int = 1
    aux_coefficient: float = 0.01

    def __post_init__(self) -> None:
        _require(0 < self.top_k <= self.experts, f"top_k must be in 1..{self.experts}, got {self.top_k}")
        _require(self.scoring in SCORINGS, f"scoring must be one of {', '.join(SCORINGS)}, got {self.scoring!r}")
        _require(
            self.choice_groups > 0 and self.experts % self.choice_groups == 0,
            f"choice_groups must divide the {self.experts} experts, got {self.choice_groups}",
        )
        reach = self.chosen_groups * self.experts // self.choice_groups
        _require(
            0 < self.chosen_groups <= self.choice_groups and self.top_k <= reach,
            f"chosen_groups must be in 1..{self.choice_groups} and hold top_k ({self.top_k}) experts, got "
            f"{self.chosen_groups}",
        )
        _require(self.aux_coefficient >= 0, f"aux_coefficient must not be negative, got {self.aux_coefficient}")


@dataclass(frozen=True)
class LatentAttentionShape:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): ranks and per-head widths."""

    query_rank: int
    kv_rank: int
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int

    def __post_init__(self) -> None:
        for name in ("kv_rank", "rope_head_dim", "nope_head_dim", "value_head_dim"):
            _require(getattr(self, name) > 0, f"{name} must be positive, got {getattr(self, name)}")
        _require(self.query_rank >= 0, f"query_rank must not be negative (0: no rank), got {self.query_rank}")
        _require(self.rope_head_dim % 2 == 0, f"rope_head_dim must be even, got {self.rope_head_dim}")

    @property
    def query_head_dim(self) -> int:
        """Width of a head's queries and keys."""
        return self.nope_head_dim + self.rope_head_dim


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer as its published configuration gives it.

    Legend: layers L, embed D, mlp F, heads N, kv_heads K, head_dim H, vocab V.
    """

    name: str
    layers: int
    embed: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    norm: Norm = "rmsnorm"
    positions: Positions = "rope"
    activation: Activation = "swiglu"
    tied_embeddings: bool = False
    attention_bias: bool = False        # on query, key, value projections
    output_bias: bool = False           # on the attention output projection
    mlp_bias: bool = False
    qk_norm: bool = False               # RMSNorm over head_dim of queries and keys (Qwen3)
    post_norms: bool = False            # a norm after attention and after the feed-forward as well (Gemma 2, 3)
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    max_positions: int = 0              # learned positions: the size of the table
    default_seq: int = 8192
    experts: ExpertShape | None = None
    latent_attention: LatentAttentionShape | None = None
    published_parameters: int | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("layers", "embed", "mlp", "heads", "kv_heads", "head_dim", "vocab"):
            _require(getattr(self, name) > 0, f"{self.name}: {name} must be positive, got {getattr(self, name)}")
        _require(
            self.heads % self.kv_heads == 0,
            f"{self.name}: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})",
        )
        _require(
            self.positions != "learned" or self.max_positions > 0,
            f"{self.name}: learned positions need max_positions",
        )

    @property
    def repeated_layers(self) -> int:
        """The equal layers that are stacked and that stages divide: all but the dense ones that lead experts."""
        return self.layers - (self.experts.first_dense_layers if self.experts is not None else 0)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate matrix beside the up matrix."""
        return self.activation in GATED


@dataclass(frozen=True)
class Workload:
    """One training step's work: a model, a global batch of sequences, an optimizer, a precision.

    `reference` says where the program comes from: `decoder` is the Flax reference decoder built from `model`,
    anything else is `file.py:name`, a user's own program (`jaxplan.workload.user`), of which `program_hash` is the
    text's hash.

    `matmul_dtype` is that of the operands of the layers' matmuls where it is not the compute dtype (`precision`): it is
    priced, not executed.

    Of a mixture of experts: `dispatch` says whether an expert takes at most `capacity_factor` times its even share of
    a group of tokens (`capacity`; Lepikhin et al. 2020, arXiv:2006.16668, section 2.2) or whatever comes (`dropless`;
    Gale et al. 2022, arXiv:2211.15841); `hot_expert_factor` is how many times
    its even share the busiest device then gets.
    """

    model: ModelShape | None
    batch: int
    seq: int
    optimizer: str = "adamw"
    parameter_dtype: str = "float32"
    compute_dtype: str = "bfloat16"
    reference: str = "decoder"
    program_hash: str = ""
    dispatch: Dispatch = "capacity"
    capacity_factor: float = 1.25
    hot_expert_factor: float = 1.0
    matmul_dtype: str = ""
    defaults: tuple[str, ...] = field(default=(), compare=False)   # which of these were assumed, to be said once

    def __post_init__(self) -> None:
        _require(self.batch > 0 and self.seq > 0, f"batch and seq must be positive, got {self.batch} and {self.seq}")
        for name in ("capacity_factor", "hot_expert_factor"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def name(self) -> str:
        return self.model.name if self.model is not None else self.reference.rpartition("/")[2]

    @property
    def room_factor(self) -> float:
        """Work that experts do over the work of the tokens that choose them: with a capacity they do all of it."""
        mixture = self.model is not None and self.model.experts is not None
        return self.capacity_factor if mixture and self.dispatch == "capacity" else 1.0

    @property
    def busiest_share(self) -> float:
        """The busiest device's tokens over the even share; with a capacity no device gets more than its room."""
        return self.hot_expert_factor if self.dispatch == "dropless" else 1.0

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.batch * self.seq

    def to_json(self) -> dict:
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "defaults"}

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the program."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]
