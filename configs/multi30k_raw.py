"""Multi30k English-German from raw text: the tiny recipe with a joint sentencepiece vocabulary.

The files of https://github.com/multi30k/dataset, data/task1/raw: one caption a line, cased, not
tokenized. Put them in data/multi30k, or name others by --config.data.train_files and so on.
Translations come out as plain text, so `bleu` (sacrebleu's own tokenization, cased) is the number
to report; it is not comparable with that of multi30k_tiny.py, which is of lower-cased tokens. No
published number has these settings; about as long as multi30k_tiny.py.

python -m experiments.train --config=configs/multi30k_raw.py --workdir=runs/multi30k_raw
python -m experiments.evaluate --workdir=runs/multi30k_raw --average_last=10 \
    --evaluators=translation --config.eval.split=test --config.eval.max_items=0
"""

from attn_jax.config import Config
from configs import multi30k_tiny

FOLDER = "data/multi30k"


def get_config() -> Config:
    config = multi30k_tiny.get_config()
    for split, name in {"train": "train", "validation": "val", "test": "test_2016_flickr"}.items():
        files = ",".join(f"{FOLDER}/{name}.{language}.gz" for language in ("en", "de"))
        setattr(config.data, f"{split}_files", files)
    config.tokenizer.name = "sentencepiece"
    config.tokenizer.vocab_size = 8000  # of both languages together
    return config
