"""The records of model files, read into `ModelShape`. No JAX here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jaxplan.errors import InputError
from jaxplan.machine import files
from jaxplan.machine.files import Record
from jaxplan.workload.shape import (
    Activation,
    ExpertShape,
    LatentAttentionShape,
    ModelShape,
    Norm,
    Positions,
    Scoring,
)


class PublishedCount(Record):
    """A parameter count that somebody published; `rounded_to` is 1 where it is exact."""

    value: int
    rounded_to: int = 1
    source: str


class ExpertRecord(Record):
    """`[experts]` of a model file."""

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


class LatentAttentionRecord(Record):
    """`[latent_attention]` of a model file."""

    query_rank: int
    kv_rank: int
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int


class ModelFile(Record):
    """`models/*.toml`."""

    name: str
    source: str
    date: str
    aliases: tuple[str, ...] = ()
    notes: str = ""
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
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    max_positions: int = 0
    default_seq: int = 8192
    experts: ExpertRecord | None = None
    latent_attention: LatentAttentionRecord | None = None
    published_parameters: PublishedCount | None = None


_NOT_SHAPE = {"source", "date", "aliases", "notes", "experts", "latent_attention", "published_parameters"}


def read_model(path: Path) -> ModelShape:
    """One model file.

    Raises:
        InputError: the file is no model.
    """
    return _shape(path, files.read(path, ModelFile))


def _shape(path: Path, record: ModelFile) -> ModelShape:
    published = record.published_parameters
    try:
        return ModelShape(
            **record.model_dump(exclude=_NOT_SHAPE),
            experts=ExpertShape(**record.experts.model_dump()) if record.experts else None,
            latent_attention=LatentAttentionShape(**record.latent_attention.model_dump())
            if record.latent_attention
            else None,
            published_parameters=published.value if published else None,
            source=f"{record.source} [{record.date}]",
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}", "a shape such as those of the catalogue's own models") from error


@cache
def records() -> dict[str, ModelFile]:
    """Every model file of the catalogue, by name."""
    root = files.folder("models")
    return {name: files.read(root / f"{name}.toml", ModelFile) for name in files.names("models")}


def models() -> tuple[ModelShape, ...]:
    """Every model of the catalogue."""
    return tuple(
        _shape(files.folder("models") / f"{name}.toml", record) for name, record in records().items()
    )


def model(name: str) -> ModelShape:
    """The model with that name or alias, or the one in a TOML file.

    Raises:
        InputError: unknown; names what there is.
    """
    if files.looks_like_path(name):
        return read_model(Path(name))
    wanted = name.strip().lower().replace("_", "-")
    for key, record in records().items():
        if wanted == key or wanted in record.aliases:
            return _shape(files.folder("models") / f"{key}.toml", record)
    raise InputError(f"unknown model {name!r}", f"one of {', '.join(records())}", "`jaxplan catalog models`")
