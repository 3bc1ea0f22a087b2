"""Trains sentencepiece models that are lossless and the same on every run."""

import io
import random
import re
from collections.abc import Iterable
from dataclasses import asdict

from attn_jax.config import TokenizerConfig
from attn_jax.errors import InputError

# The trainer skips sentences above 4,192 bytes, so long documents are cut, at spaces if possible.
_SENTENCE = re.compile(r"(.{1,1000})(?: |$)|(.{1000})", re.DOTALL)
_MOST_CHARACTERS = 10_000_000  # of longer texts a sample is used: time and memory
_RESERVED = "\0▁▅ "  # the library's own marks, and the space, which is always known
_LIMIT = re.compile(r"Vocabulary size too high .* value <= (\d+)|required_chars\. \d+ vs (\d+)")


def train_model(texts: Iterable[str], config: TokenizerConfig, specials: object) -> bytes:
    """Returns the model file of a unigram model.

    Args:
      texts: the training split.
      config: `vocab_size` is of all ids; those of the `sentinels` come after the model's.
      specials: a dataclass of ids.

    Raises:
      InputError: if the vocabulary is larger or smaller than the text allows.
    """
    import sentencepiece

    sentences, characters = _sentences(texts)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type="unigram",
            vocab_size=config.vocab_size - config.sentinels,
            split_digits=config.split_digits,
            required_chars="".join(sorted(characters)),
            character_coverage=1.0,
            # Lossless: no Unicode normalization, every space kept.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            num_threads=4,  # fixed: sums over threads are rounded in their order
            minloglevel=2,
            **_special_pieces(asdict(specials)),
        )
    except RuntimeError as error:
        raise InputError(_explain(error, config)) from error
    return model.getvalue()


def _sentences(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """Returns sentences to train on and all characters of the texts."""
    sentences: list[str] = []
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
        sentences.extend(a or b for a, b in _SENTENCE.findall(text))
    share = min(_MOST_CHARACTERS / max(sum(map(len, sentences)), 1), 1)
    # At random: every second text, say, would be the sources of pairs and never a target.
    sampled = random.Random(0).sample(sentences, int(len(sentences) * share))
    return sampled if share < 1 else sentences, characters - set(_RESERVED)


def _special_pieces(ids: dict[str, int]) -> dict[str, object]:
    # Rare brackets, as the trainer leaves out text that spells a special piece: corpora
    # such as WikiText contain a literal "<unk>".
    names = {name: f"⟨{name}⟩" for name in ids}
    assert ids["mask"] + 1 == ids["sep"], "control symbols take the free ids in order"
    return {
        **{f"{name}_id": ids[name] for name in ("pad", "bos", "eos", "unk")},
        **{f"{name}_piece": names[name] for name in ("pad", "bos", "eos", "unk")},
        "control_symbols": [names["mask"], names["sep"]],
        "unk_surface": "⁇",
    }


def _explain(error: RuntimeError, config: TokenizerConfig) -> str:
    found = _LIMIT.search(str(error))
    if found:
        limit = int(found[1] or found[2]) + config.sentinels
        allowed = f"allows at most {limit}" if found[1] else f"needs at least {limit}"
        return f"tokenizer.vocab_size = {config.vocab_size}: the text {allowed}"
    return f"tokenizer: sentencepiece cannot be trained on this text: {str(error).strip()}"
