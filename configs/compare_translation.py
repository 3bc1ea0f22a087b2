"""What three ways of translating do to the same sentence pairs.

An encoder-decoder, a causal LM and a prefix LM on `source <sep> target` learn to turn English
dates, amounts, units and lists of the Unicode CLDR into German.

python -m experiments.compare --config=configs/compare_translation.py --workdir=runs/translation
"""

from attn_jax.comparison.arms import Study
from attn_jax.config import Config


def get_config() -> Study:
    base = Config()
    base.data.name = "cldr_phrases"
    base.data.length = 64
    base.data.batch_tokens = 1024
    base.tokenizer.vocab_size = 780
    base.model.num_layers = 2
    base.optimizer.name = "muon"
    base.optimizer.learning_rate = 1e-2
    base.optimizer.warmup_steps = 40
    base.train.steps = 500
    base.train.log_every = 20
    base.train.eval_every = 100
    base.train.checkpoint_every = 250
    base.eval.evaluators = "loss,translation"
    return Study(
        name="translation",
        question="Does translation need an encoder beside the decoder?",
        base=base,
        arms={
            "encoder-decoder": {
                "model.architecture": "encoder_decoder",
                "objective.name": "translation",
            },
            "causal": {"model.architecture": "decoder", "objective.name": "causal_translation"},
            "prefix": {"model.architecture": "decoder", "objective.name": "prefix_translation"},
        },
        declared=("model.architecture", "objective.name"),
        seeds="0,1",
    )
