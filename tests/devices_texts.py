"""Prints what several devices write, and what one of them does, as JSON; run by test_devices.py."""

import json
import re
from unittest import mock

import jax
import numpy as np

from attn_jax import devices
from attn_jax.config import ModelConfig
from attn_jax.decoding import sampling
from attn_jax.decoding.beam import Beam, beam_search
from attn_jax.decoding.prompts import prepare
from attn_jax.decoding.sampling import Sampling, sample
from attn_jax.models.tokens import Tokens
from attn_jax.models.transformer import build_model

COLLECTIVE = re.compile(r"all-gather|all-reduce|all-to-all|collective-permute")
SMALL = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 24}
CONFIG = ModelConfig(architecture="encoder_decoder", **SMALL)


def begin(rows):
    source = jax.random.randint(jax.random.key(1), (rows, 7), 0, 80)
    return Tokens.of(source[:, :1]).causal(), Tokens.of(source)


def places(x):
    return {shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}


def texts(count):
    """What the first `count` devices write, in more rows than there are devices and in fewer."""
    jax.clear_caches()
    devices.local_mesh.cache_clear()
    with mock.patch("jax.local_devices", return_value=jax.devices()[:count]):
        assert devices.local_mesh().size == count
    ready, ends = prepare(build_model(CONFIG, 80)), {"max_new": 6, "eos": -1, "pad": 0}
    found = beam_search(ready, *begin(5), beam=Beam(3, n_best=2), **ends)
    some = ends | {"eos": int(found.ids[0, 0, 2])}
    ended = beam_search(ready, *begin(5), beam=Beam(3), **some)
    drawn = [sample(ready, *begin(rows), sampling=Sampling(1.0, seed=3), **ends) for rows in (5, 2)]
    keys = jax.random.split(jax.random.key(0), 5)
    kept = jax.tree.leaves(ready.params)
    program = sampling._sample_jit.lower(*ready, *begin(5), keys, Sampling(), *ends.values())
    return {
        "sample": drawn[0].tolist(),
        "few": drawn[1].tolist(),
        "beam": found.ids.tolist(),
        "ended": ended.ids[:, 0].tolist(),
        "collectives": COLLECTIVE.findall(program.compile().as_text()),
        "scores": np.asarray(found.scores).tolist(),
        "has_params": len(kept[0].devices()),
        "copies": max(len(places(x)) for x in kept),
    }


if __name__ == "__main__":
    print(json.dumps({"devices": len(jax.devices()), "one": texts(1), "three": texts(3)}))
