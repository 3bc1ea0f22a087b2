"""The one typed config: fields, dotted access, and the diff between two configs.

Every field is a plain scalar, so `--config.section.field=value` can set any of them. A config is
mutable while flags are applied, then `validation.validate` checks it and freezes it.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_jax.errors import InputError, nearest
from attn_jax.files import home_path


class Section:
    """Base of all config dataclasses: only fields can be set, and nothing once frozen."""

    _frozen = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise dataclasses.FrozenInstanceError(f"config is frozen; cannot set {name!r}")
        known = [item.name for item in dataclasses.fields(self)]
        if name not in known:
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}{nearest(name, known)}"
            )
        super().__setattr__(name, value)


@dataclass(unsafe_hash=True)  # modules carry it as a static part, which jit hashes
class ModelConfig(Section):
    """The Transformer."""

    architecture: str = "decoder"  # encoder | decoder | encoder_decoder
    num_layers: int = 4  # blocks of the stack; for an encoder_decoder, of each side
    d_model: int = 128  # width of the residual stream
    num_heads: int = 4  # query heads
    num_kv_heads: int = 0  # key and value heads (grouped queries); 0 means num_heads
    d_ff: int = 512  # hidden width of the MLP
    activation: str = "gelu"  # gelu | relu | swiglu
    norm: str = "layer"  # layer | rms
    norm_position: str = "pre"  # pre | post
    positions: str = "rotary"  # rotary | learned | sinusoidal | none
    max_length: int = 512  # rows of the learned position table; other schemes have no limit
    window: int = 0  # a query sees keys fewer than this many positions away; 0 means all
    dropout: float = 0.0  # rate on embeddings and residual branches, to the nearest 1/256
    bias: bool = False  # biases in dense layers and norms
    share_sides: bool = False  # encoder_decoder: both sides are one stack, cross-attention apart
    side_embeddings: bool = (
        False  # of joined pairs: a learned vector is added to each side's tokens
    )
    dtype: str = "float32"  # float32 | bfloat16, of activations; parameters are float32
    # What is computed does not depend on the rest, only its time and memory do:
    attention: str = "auto"  # auto | dense | blockwise | cudnn; auto: blockwise where it is long
    scan_layers: bool = False  # compile one block and scan it over the layers; slower on CPU
    remat: str = "none"  # none | block | products: recompute, in the backward pass, whole blocks,
    # or all of them but the matrix products


@dataclass
class DataConfig(Section):
    """Where the text comes from and how it becomes batches."""

    name: str = "web_bible"  # a source of attn_jax/data/sources or any registered TFDS data set
    source_language: str = "en"  # which side of a pair is read, e.g. of a TFDS translation set
    target_language: str = "de"  # which side is written; for cldr_phrases any CLDR language
    train_files: str = ""  # text_files: comma-separated paths; parallel_files: "source,target"
    validation_files: str = ""  # likewise; empty: every 50th record of train_files is held out
    test_files: str = ""  # likewise; empty: the record before each of those
    document: str = "line"  # text_files: what one document is: line | paragraph | file
    length: int = 128  # positions of a packed LM row; longest sentence of a pair, in tokens
    batch_tokens: int = 2048  # positions (padding included) in a global batch; of pairs: a side
    data_dir: str = ""  # TFDS directory; empty means $TFDS_DATA_DIR or ~/tensorflow_datasets


@dataclass
class TokenizerConfig(Section):
    """The tokenizer, trained on the training split only."""

    name: str = "sentencepiece"  # sentencepiece | byte | char | whitespace
    vocab_size: int = 2000  # types, special ones included; byte and char ignore it
    split_digits: bool = True  # sentencepiece: every digit is a piece of its own
    sentinels: int = 0  # last ids, which stand for hidden spans: span corruption needs them


@dataclass
class ObjectiveConfig(Section):
    """What is predicted from what."""

    # causal_lm | masked_lm | masked_next_token | mixture | prefix_lm | span_corruption |
    # prefix_span_corruption | translation | causal_translation | prefix_translation
    name: str = "causal_lm"
    # Where tokens are hidden (masked_lm, masked_next_token, the masked part of mixture):
    mask_rate: float = 0.3  # share of the tokens that become targets; of span corruption, too
    final_mask_rate: float = 0.0  # reached in a line at the last step; 0 means mask_rate throughout
    mask_share: float = 0.8  # of the targets, share replaced by <mask> ...
    random_share: float = 0.1  # ... and share replaced by a random token; the rest stays
    source_loss: float = 0.0  # causal_translation: weight of a source token; of a target token: 1
    mask_unit: str = "token"  # token | word | span: what is hidden whole, or not at all
    span_length: float = 3.0  # mean tokens of a span (mask_unit span, span corruption)
    causal_share: float = 0.5  # mixture: share of causal LM; the rest is masked_next_token
    mixture_by: str = "batch"  # mixture: batch | row, what is wholly of one kind
    label_smoothing: float = 0.0  # share of the target's probability spread evenly, in training


@dataclass
class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule."""

    name: str = "adamw"  # adamw | adam | lion | sgd | adafactor | muon
    learning_rate: float = 3e-3  # peak
    schedule: str = "cosine"  # cosine | inverse_sqrt | wsd | constant, each after a warm-up
    warmup_steps: int = 100  # linear from 0 to the peak
    decay_share: float = 0.2  # wsd: the last share of the steps, in which the rate falls
    final_share: float = 0.02  # cosine, wsd: rate at the last step, as a share of the peak
    b1: float = 0.9  # decay of the first moment; momentum of sgd
    b2: float = 0.98  # decay of the second moment
    eps: float = 1e-8  # added to the denominator (adam, adamw)
    weight_decay: float = 0.01  # adamw, lion, muon: on the kernels of dense layers only
    clip_norm: float = 1.0  # largest global norm of the gradient; 0 means no clipping


@dataclass
class TrainConfig(Section):
    """The loop."""

    steps: int = 1000  # optimizer updates
    seed: int = 0  # of parameters, data order, masking and dropout
    accumulate: int = 1  # micro-batches that the global batch is cut into
    parallel: str = "jit"  # jit | pmap, both over all devices
    log_every: int = 50  # steps between lines of metrics.jsonl
    eval_every: int = 250  # steps between validation losses; 0 means at the end only
    checkpoint_every: int = 500  # steps between checkpoints; one is always saved at the end
    keep_checkpoints: int = 2  # newest of them that are kept (and what a stop saved); 0 keeps all
    wandb: bool = False  # also log to Weights & Biases, where it is installed
    # A run directory whose parameters and tokenizer are the first ones here, everything else
    # starting anew; {seed} in it stands for train.seed
    init_from: str = ""
    init_step: int = 0  # of that run's checkpoint; 0 is its newest

    @property
    def init_directory(self) -> Path | None:
        """The run directory that `init_from` means, if any."""
        if not self.init_from:
            return None
        return home_path("train.init_from", self.init_from.replace("{seed}", str(self.seed)))


@dataclass
class EvalConfig(Section):
    """What is measured on a checkpoint."""

    # At the end: loss, shared_positions, translation, attention, minimal_pairs, cloze, probe,
    # fine_tuning
    evaluators: str = "loss"
    curve: str = "loss"  # likewise comma-separated, every train.eval_every steps
    split: str = "validation"  # validation | test
    # Most rows (LM), sentences (pairs), pairs of a paradigm, cloze or labelled texts; 0: all
    max_items: int = 1000
    shared_positions: int = 1024  # held-out positions that every arm predicts
    beam_size: int = 1  # translation: hypotheses searched at once; 1 is greedy decoding
    length_penalty: float = 1.0  # of a beam: a score is log-probability / length ** this; 1: mean
    early_stopping: bool = True  # of a beam: ends a sentence with beam_size finished hypotheses
    scoring: str = "own"  # minimal_pairs, cloze: comma-separated methods; own: of the own mask
    minimal_pairs: str = ""  # minimal_pairs: a .jsonl file of BLiMP's form, or a folder or .zip
    cloze: str = ""  # cloze: texts whose last word is asked for, a line each, or .jsonl as LAMBADA
    # probe, fine_tuning: "TRAIN,TEST", files of label<TAB>text or label<TAB>text<TAB>text
    labelled: str = ""
    tune_epochs: int = 5  # fine_tuning: how often the training texts are read
    tune_learning_rate: float = 5e-4  # fine_tuning: at its peak


@dataclass
class Config(Section):
    """One experiment."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)


MAX_INT = 2**31 - 1


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns `{dotted name: value}` of every scalar field of a config or a section."""
    flat: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{item.name}.")
        else:
            flat[prefix + item.name] = value
    return flat


def names_in(text: str) -> list[str]:
    """Returns the parts of a comma-separated list."""
    return [part.strip() for part in text.split(",")]


def set_field(config: Any, name: str, value: Any) -> None:
    """Sets the dotted field `name`; raises InputError for an unknown name or a wrong type."""
    *sections, last = name.split(".")
    holder = config
    for section in sections:
        holder = getattr(holder, "__dict__", {}).get(section)
    old = getattr(holder, "__dict__", {}).get(last)
    is_field = last in getattr(holder, "__dataclass_fields__", {})
    if not is_field or dataclasses.is_dataclass(old):
        raise InputError(f"unknown config field {name!r}{nearest(name, flatten(config))}")
    setattr(holder, last, _typed(name, value, type(old)))


def with_fields(config: Config, changes: dict[str, Any]) -> Config:
    """Returns an unfrozen copy of `config` with the dotted fields in `changes` set."""
    copy = from_dict(to_dict(config))
    for name, value in changes.items():
        set_field(copy, name, value)
    return copy


def to_dict(config: Any) -> dict[str, Any]:
    """Returns the config as nested plain dicts, ready for JSON."""
    return dataclasses.asdict(config)


# Fields that earlier versions had, at the values that they then meant nothing.
GONE = (("eval", "probe", ""),)


def from_dict(values: dict[str, Any]) -> Config:
    """Rebuilds a config from `to_dict`; raises InputError for unknown fields."""
    config = Config()
    for section, fields in values.items():
        for name, value in fields.items():
            if (section, name, value) in GONE:
                continue
            set_field(config, f"{section}.{name}", value)
    return config


def diff(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Returns `{dotted name: (value in a, value in b)}` of the fields that differ."""
    flat_a, flat_b = flatten(a), flatten(b)
    return {k: (flat_a[k], flat_b[k]) for k in flat_a if flat_a[k] != flat_b[k]}


def check_types(config: Config) -> None:
    """Makes every field of the type of its default; a config file may have set anything."""
    for section, default in vars(Config()).items():
        given = vars(config).get(section)
        if type(given) is not type(default):
            raise InputError(f"{section} = {given!r}: expected {type(default).__name__}")
        for name, usual in vars(default).items():
            value = vars(given).get(name)
            typed = _typed(f"{section}.{name}", value, type(usual))
            if typed is not value:
                setattr(given, name, typed)


def _typed(name: str, value: Any, kind: type) -> Any:
    """Returns the value of a field as the type that it must have."""
    if kind is float and type(value) is int and abs(value) <= MAX_INT:
        value = float(value)
    if type(value) is not kind:
        raise InputError(f"{name} = {value!r}: expected {kind.__name__}")
    return value
