"""TED talks with the Transformer that IWSLT14 is usually trained with: 6 + 6 layers of width 512.

TFDS has no IWSLT14. The nearest registered set is ted_hrlr_translate (Qi et al. 2018,
https://aclanthology.org/N18-2084): TED talks as well, tokenized and lower-cased, without a
German-English pair; Russian-English is about as large, 208,000 pairs to IWSLT14's 160,000. So no
IWSLT14 number can be expected of it. `bleu_tokenized` is the one that fits such text.

The settings: 4 heads, d_ff 1024, dropout 0.3, 10,000 types, 4,096 tokens an update, inverse square
root from 5e-4 after 4,000 updates, label smoothing 0.1, weight decay 1e-4, beam 5. Never trained
here: 4e16 FLOP, which is for a GPU.

python -m experiments.train --config=configs/iwslt14.py --workdir=runs/ted
python -m experiments.evaluate --workdir=runs/ted --average_last=10 --evaluators=translation \
    --config.eval.split=test --config.eval.max_items=0

With your own copy of IWSLT14, as files of BPE pieces:

python -m experiments.train --config=configs/iwslt14.py --workdir=runs/iwslt14 \
    --config.data.name=parallel_files --config.tokenizer.name=whitespace \
    --config.data.train_files=train.de,train.en --config.data.validation_files=valid.de,valid.en \
    --config.data.test_files=test.de,test.en
"""

from attn_jax.config import Config


def get_config() -> Config:
    config = Config()
    config.model.architecture = "encoder_decoder"
    config.model.num_layers = 6
    config.model.d_model = 512
    config.model.num_heads = 4
    config.model.d_ff = 1024
    config.model.activation = "relu"
    config.model.norm_position = "post"
    config.model.positions = "sinusoidal"
    config.model.bias = True
    config.model.dropout = 0.3
    config.objective.name = "translation"
    config.objective.label_smoothing = 0.1
    config.data.name = "ted_hrlr_translate/ru_to_en"
    config.data.source_language = "ru"
    config.data.target_language = "en"
    config.data.batch_tokens = 4096
    config.tokenizer.vocab_size = 10_000
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup_steps = 4000
    config.optimizer.weight_decay = 1e-4
    config.optimizer.clip_norm = 0.0
    config.train.steps = 40_000
    config.train.eval_every = 1000
    config.train.checkpoint_every = 1000  # about an epoch
    config.train.keep_checkpoints = 10  # for their average
    config.eval.evaluators = "loss,translation"
    config.eval.beam_size = 5
    return config
