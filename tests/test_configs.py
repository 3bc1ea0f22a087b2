"""Every shipped config is built, validated and stepped, and no field of the config goes unread."""

import ast
import dataclasses
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_runs import ROOT, run_module

from attn_jax.comparison.arms import Study, plan, studies
from attn_jax.comparison.sweeps import plan_sweep
from attn_jax.config import Config, diff, flatten, from_dict, set_field, to_dict, with_fields
from attn_jax.data.tokenizers import ByteTokenizer
from attn_jax.errors import InputError
from attn_jax.models.tokens import Pair, Tokens
from attn_jax.models.transformer import build_model
from attn_jax.objectives import OBJECTIVES, make_objective
from attn_jax.training.optimizers import make_optimizer
from attn_jax.training.state import new_state, split_model
from attn_jax.training.step import StepSpec, make_step
from attn_jax.validation import BOUNDS, CHOICES, validate

FILES = sorted((ROOT / "configs").glob("[!_]*.py"))
OTHERS = {"sin": "cos"}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arms_of(path, root=Path("nowhere")):
    """`{name: validated config}`: one of an experiment, one an arm of a study."""
    config = load(path).get_config()
    if isinstance(config, Config):
        return {path.stem: validate(config)}
    planned = [plan(study, "", root) for study in studies(config).values()]
    for study in studies(config).values():
        assert len(plan_sweep(study, "", root)) >= (2 * len(study.arms) if study.grid else 0)
    return {f"{run.study.name}/{run.arm}": run.config for runs in planned for run in runs}


def test_there_are_configs_to_test():
    assert {"compare", "compare_masking", "compare_translation", "lm_decoder"} <= {
        path.stem for path in FILES
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_is_documented_built_and_validated(path):
    module = load(path)
    assert len(module.__doc__.splitlines()) > 1
    assert "python -m experiments." in module.__doc__
    assert f"configs/{path.name}" in module.__doc__
    assert arms_of(path)
    first, second = module.get_config(), module.get_config()
    assert first is not second  # flags are set on one of them


def all_arms():
    """One entry for each step that differs, as several files may share one."""
    found = {}
    for path in FILES:
        for name, config in arms_of(path).items():
            small = narrow(config)
            stepped = str((small.model, small.objective, small.optimizer))
            found.setdefault(stepped, (name, config))
    return dict(found.values())


def narrow(config):
    """The same experiment at a size that compiles quickly."""
    small = {"model.d_model": 16, "model.num_heads": 2, "model.num_layers": 1, "model.d_ff": 16}
    small |= {"optimizer.name": "sgd"}  # test_optimizers.py steps them all
    # The first step of a long warm-up is too small for float32 to see in every parameter.
    small |= {"optimizer.learning_rate": 0.1, "optimizer.warmup_steps": 0}
    return with_fields(config, small | {"train.seed": 0})


@pytest.mark.parametrize(("name", "config"), all_arms().items(), ids=lambda x: str(x)[:40])
def test_every_arm_makes_a_step(name, config):
    config, tokenizer = validate(narrow(config)), ByteTokenizer(config.tokenizer.sentinels)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 256, (2, 12)).astype(np.int32)
    text = Tokens.of(jnp.asarray(ids), jnp.arange(12)[None] < jnp.array([[12], [7]]))
    objective = make_objective(config.objective, tokenizer.vocabulary)
    text = Pair(text, text) if objective.kind == "pair" else text
    shapes = nnx.eval_shape(lambda: build_model(config.model, tokenizer.vocab_size))
    graph, params = split_model(shapes)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), params)
    optimizer = make_optimizer(config.optimizer, config.train.steps)
    step = jax.jit(make_step(StepSpec(graph, objective, optimizer, config)))
    state, sums = step(new_state(params, optimizer, 0), text)
    assert int(state.step) == 1
    assert sums["weight"] > 0
    assert np.isfinite(float(sums["loss"]))
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), params, state.params)
    assert all(jax.tree.leaves(changed))


def reads_of(tree):
    """Every attribute that is read: `x.name`, or `getattr(x, "name")` and flat["section.name"]."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (node.value.rpartition(".")[2],) if "." in node.value else ()


def library_reads():
    """All attributes that the library reads outside of the modules that only check them."""
    found = {f"{split}_files" for split in ("train", "validation", "test")}  # an f-string
    for path in (ROOT / "attn_jax").rglob("*.py"):
        if path.name not in ("config.py", "validation.py"):
            found |= {name for name in reads_of(ast.parse(path.read_text()))}
    return found


def test_no_field_goes_unread():
    """T11, as far as names can show it; other tests see the effects."""
    reads = library_reads()
    unread = [name for name in flatten(Config()) if name.rpartition(".")[2] not in reads]
    assert unread == []
    assert "no_such_field" not in reads


def test_every_field_has_a_comment_and_is_defined_once():
    """T12; that `name` is in several sections is the same word, not the same setting."""
    source = (ROOT / "attn_jax/config.py").read_text().splitlines()
    sections = {type(getattr(Config(), item.name)) for item in dataclasses.fields(Config)}
    names = [item.name for kind in sections for item in dataclasses.fields(kind)]
    assert sorted({name for name in names if names.count(name) > 1}) == ["name"]
    for node in ast.parse("\n".join(source)).body:
        if isinstance(node, ast.ClassDef) and node.name in {kind.__name__ for kind in sections}:
            fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            for item in fields:
                near = source[item.lineno - 1] + source[item.lineno - 2]
                assert "#" in near, f"{node.name}.{item.target.id}"


def test_every_field_is_a_scalar_with_choices_or_bounds_if_it_is_a_number():
    flat = flatten(Config())
    assert {type(value) for value in flat.values()} <= {str, int, float, bool}
    numbers = {name for name, value in flat.items() if type(value) in (int, float)}
    assert numbers == set(BOUNDS)
    assert set(CHOICES) <= flat.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_every_bound_is_inclusive_and_enforced(name):
    value = flatten(Config())[name]
    low, high = BOUNDS[name]
    step = 1 if isinstance(value, int) else 1e-3
    for bound, outside in ((low, -step), (high, step)):
        if bound is not None:
            wrong = with_fields(Config(), {name: type(value)(bound + outside)})
            with pytest.raises(InputError, match=name.replace(".", r"\.")):
                validate(wrong)
    if isinstance(value, float):
        with pytest.raises(InputError, match="nan"):
            validate(with_fields(Config(), {name: float("nan")}))


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_is_enforced_with_the_nearest_name(name):
    typo = CHOICES[name][-1] + "x"
    with pytest.raises(InputError) as caught:
        validate(with_fields(Config(), {name: typo}))
    message = str(caught.value)
    assert message.startswith(f"{name} = {typo!r}: expected one of ")
    assert all(choice in message for choice in CHOICES[name])
    assert f"did you mean {CHOICES[name][-1]!r}?" in message


def test_an_objective_needs_its_architecture():
    for name, objective in OBJECTIVES.items():
        fields = {"objective.name": name, "model.architecture": "", "tokenizer.sentinels": 13}
        for architecture in objective.architectures:
            validate(with_fields(Config(), fields | {"model.architecture": architecture}))
        for other in set(CHOICES["model.architecture"]) - {*objective.architectures}:
            with pytest.raises(InputError, match=r"model\.architecture"):
                validate(with_fields(Config(), fields | {"model.architecture": other}))


SIDES = {
    "one stack": ({"model.share_sides": True}, "model.share_sides"),
    "no pair": ({"model.side_embeddings": True}, "model.side_embeddings.*not 'causal_lm'"),
    "two stacks": (
        {
            "model.side_embeddings": True,
            "model.architecture": "encoder_decoder",
            "objective.name": "translation",
        },
        "model.side_embeddings.*not 'translation'",
    ),
    "a text": ({"objective.source_loss": 0.5}, "source_loss = 0.5: .*'causal_lm'"),
    "a prefix": (
        {"objective.source_loss": 1.0, "objective.name": "prefix_translation"},
        "source_loss = 1: .*has seen the next one",
    ),
}


@pytest.mark.parametrize("case", SIDES)
def test_options_of_sides_that_nothing_would_read_are_refused(case):
    fields, message = SIDES[case]
    with pytest.raises(InputError, match=message):
        validate(with_fields(Config(), fields))


def test_a_whole_number_will_do_for_a_float():
    config = Config()
    config.model.dropout, config.optimizer.clip_norm = 0, 1
    validate(config)
    assert [type(x) for x in (config.model.dropout, config.optimizer.clip_norm)] == [float, float]


def test_a_validated_config_is_frozen():
    config = validate(validate(Config()))  # once more changes nothing
    for change in (lambda: setattr(config.model, "d_model", 3), lambda: setattr(config, "eval", 1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()


def test_configs_survive_json_and_differ_only_where_they_do():
    config = with_fields(Config(), {"train.steps": 7, "optimizer.learning_rate": 1})
    assert from_dict(to_dict(config)) == config
    assert diff(Config(), config) == {
        "train.steps": (1000, 7),
        "optimizer.learning_rate": (3e-3, 1.0),
    }
    assert diff(config, config) == {}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.d_modle", 3, "did you mean 'model.d_model'"),
        ("model.d_model", 3.0, "expected int"),
        ("model.d_model", "3", "expected int"),
        ("model.d_model", True, "expected int"),
        ("optimizer.learning_rate", "high", "expected float"),
        ("train.wandb", 1, "expected bool"),
        ("model", 3, "unknown config field"),
    ],
)
def test_wrong_fields_and_types_are_input_errors(name, value, message):
    with pytest.raises(InputError, match=message):
        set_field(Config(), name, value)


def test_a_study_is_a_config_too():
    study = load(ROOT / "configs/compare_masking.py").get_config()
    assert isinstance(study, Study)
    assert list(studies(study)) == [study.name]
    both = load(ROOT / "configs/compare.py").get_config()
    assert set(studies(both)) == {"masking", "translation"}
