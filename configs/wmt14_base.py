"""WMT14 English-German with the base Transformer of Vaswani et al. 2017: 63M parameters.

Theirs: 6 + 6 post-norm layers, one joint vocabulary of 37,000 for source, target and output (BPE;
here sentencepiece), about 25,000 tokens a side in each of 100,000 updates, the average of the last
5 checkpoints, beam 4. They report BLEU 27.3 on newstest2014, of tokenized text with compounds
split; sacrebleu's `bleu`, of plain text, is another number. Never trained here: 1e18 FLOP, which is
for GPUs or a TPU slice.

The data, 4.5 million pairs, is downloaded and prepared by TFDS once (see docs/corpus.md).

python -m experiments.train --config=configs/wmt14_base.py --workdir=runs/wmt14
python -m experiments.evaluate --workdir=runs/wmt14 --average_last=5 --evaluators=translation \
    --config.eval.split=test --config.eval.max_items=0
"""

from attn_jax.config import Config


def get_config() -> Config:
    config = Config()
    config.model.architecture = "encoder_decoder"
    config.model.num_layers = 6
    config.model.d_model = 512
    config.model.num_heads = 8
    config.model.d_ff = 2048
    config.model.activation = "relu"
    config.model.norm_position = "post"
    config.model.positions = "sinusoidal"
    config.model.bias = True
    config.model.dropout = 0.1
    config.model.dtype = "bfloat16"
    config.objective.name = "translation"
    config.objective.label_smoothing = 0.1
    config.data.name = "wmt14_translate/de-en"
    config.data.length = 128  # longer pairs are left out
    config.data.batch_tokens = 24_576  # 192 rows: a multiple of 8 devices, nearly 25,000
    config.tokenizer.vocab_size = 37_000
    config.optimizer.name = "adam"
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.learning_rate = 7e-4  # (512 * 4000) ** -0.5
    config.optimizer.warmup_steps = 4000
    config.optimizer.eps = 1e-9
    config.optimizer.clip_norm = 0.0
    config.train.steps = 100_000
    config.train.eval_every = 2000
    config.train.checkpoint_every = 1500  # theirs: every 10 minutes of 12 hours
    config.train.keep_checkpoints = 5  # for their average
    config.eval.evaluators = "loss,translation"
    config.eval.beam_size = 4
    config.eval.length_penalty = 0.6
    return config
