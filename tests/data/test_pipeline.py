import itertools

import jax
import numpy as np
import pytest

from attn_jax.data.pipeline import open_dataset
from attn_jax.data.tokenizers import WhitespaceTokenizer
from attn_jax.errors import InputError
from attn_jax.models.tokens import Pair, Tokens

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def sentence(i, size=6):
    return " ".join(WORDS[(i * 7 + j * j) % 10] for j in range(1 + i % size))


@pytest.fixture
def text(make_config, write):
    """Returns a function that opens a data set of 120 short documents."""
    path = write("train.txt", [f"{i} {sentence(i)}" for i in range(120)])

    def opened(tokenizer_given=None, **fields):
        fields = {"name": "text_files", "train_files": path} | fields
        return open_dataset(make_config(**fields), tokenizer_given)

    return opened


@pytest.fixture
def pairs(make_config, write):
    """Returns a function that opens a data set of 150 pairs of words."""
    lines = [f"{i} {sentence(i)}" for i in range(150)]
    source = write("a.en", lines)
    target = write("a.de", [line.upper() for line in lines])

    def opened(**fields):
        fields = {
            "name": "parallel_files",
            "train_files": f"{source},{target}",
            "length": 64,
            "batch_tokens": 512,
        } | fields
        return open_dataset(make_config(**fields))

    return opened


def take(iterator, count):
    return list(itertools.islice(iterator, count))


def same(a, b):
    return len(a) == len(b) and all(
        jax.tree.structure(x) == jax.tree.structure(y)
        and all(map(np.array_equal, jax.tree.leaves(x), jax.tree.leaves(y)))
        for x, y in zip(a, b, strict=True)
    )


def documents(dataset, tokens):
    """Decodes the segments of packed rows that are whole, by the tokens that frame them."""
    s = dataset.tokenizer.specials
    for ids, segments in zip(tokens.ids, tokens.segments, strict=True):
        for segment in range(1, segments.max() + 1):
            piece = ids[segments == segment]
            if piece[0] == s.bos and piece[-1] == s.eos:
                yield dataset.tokenizer.decode(piece)


def pair_texts(dataset, batch):
    """Decodes the pairs of a batch, checking how each segment is framed."""
    s = dataset.tokenizer.specials
    slots = itertools.product(
        range(len(batch.source.ids)), range(1, batch.source.segments.max() + 1)
    )
    for row, segment in slots:
        source = batch.source.ids[row][batch.source.segments[row] == segment]
        target = batch.target.ids[row][batch.target.segments[row] == segment]
        if not len(source):
            continue
        assert source[-1] == target[-1] == s.eos
        assert target[0] == s.bos
        assert s.bos not in source
        yield dataset.tokenizer.decode(source), dataset.tokenizer.decode(target)


def check_fields(tokens, pad):
    """Int32 leaves of one shape; padding on the right, with the pad id and position 0."""
    assert isinstance(tokens, Tokens)
    assert tokens.blocks is None
    leaves = (tokens.ids, tokens.positions, tokens.segments)
    assert all(type(leaf) is np.ndarray and leaf.dtype == np.int32 for leaf in leaves)
    assert len({leaf.shape for leaf in leaves}) == 1
    padding = tokens.segments == 0
    assert (tokens.ids[padding] == pad).all()
    assert (tokens.ids[~padding] != pad).all()
    assert not tokens.positions[padding].any()
    assert not (padding[:, :-1] & ~padding[:, 1:]).any()


def test_text_batches_are_packed_rows(text):
    dataset = text(length=64, batch_tokens=256)
    assert dataset.kind == "text"
    for batch in take(dataset.train_batches(0), 20):
        assert batch.ids.shape == (4, 64)
        check_fields(batch, dataset.tokenizer.specials.pad)
        begins = batch.ids == dataset.tokenizer.specials.bos
        assert (batch.positions[begins] == 0).all()
        texts = set(dataset.texts("train"))
        assert all(document in texts for document in documents(dataset, batch))


def test_an_epoch_of_rows_is_the_whole_text_once(text):
    dataset = text(length=32, batch_tokens=32)
    (column,) = dataset.columns("train")
    total = column.lengths.sum() + 2 * len(column)
    rows = -(-total // 32)
    batches = take(dataset.train_batches(5), rows)
    ids = np.concatenate([batch.ids[batch.segments > 0] for batch in batches])
    s = dataset.tokenizer.specials
    assert len(ids) == total
    assert (ids == s.bos).sum() == (ids == s.eos).sum() == len(column)
    words = ids[(ids != s.bos) & (ids != s.eos)]
    np.testing.assert_array_equal(np.sort(words), np.sort(column.flat))
    padding = sum((batch.segments == 0).sum() for batch in batches)
    assert dataset.padding_share == pytest.approx(padding / (rows * 32))


def test_pair_batches_hold_every_pair_once_an_epoch(pairs):
    dataset = pairs()
    assert dataset.kind == "pair"
    expected = sorted(dataset.texts("train"))
    rows = dataset._split("train").num_rows
    seen, positions, padding = [], 0, 0
    for batch in take(pairs(batch_tokens=64).train_batches(0), rows):  # one row each
        assert isinstance(batch, Pair)
        for side in (batch.source, batch.target):
            check_fields(side, dataset.tokenizer.specials.pad)
            assert side.ids.shape[1] <= 64
            positions += side.ids.size
            padding += (side.segments == 0).sum()
        seen += pair_texts(dataset, batch)
    assert sorted(seen) == expected
    assert dataset.padding_share == pytest.approx(padding / positions)


def test_all_batches_of_pairs_have_one_shape_within_the_budget(pairs):
    dataset = pairs()
    batches = take(dataset.train_batches(0), 60)
    assert len({(b.source.ids.shape, b.target.ids.shape) for b in batches}) == 1
    assert batches[0].source.ids.shape[0] == 512 // 64
    assert max(batches[0].source.ids.size, batches[0].target.ids.size) <= 512


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_the_order_depends_on_the_seed_alone(kind, request):
    opened = request.getfixturevalue(kind)
    first = take(opened().train_batches(3), 12)
    assert same(first, take(opened().train_batches(3), 12))
    assert not same(first, take(opened().train_batches(4), 12))


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_every_epoch_has_another_order(kind, request):
    split = request.getfixturevalue(kind)(batch_tokens=64)._split("train")
    batches = split.train_rows(0)
    steps = [batches[i].tolist() for i in range(2 * split.num_rows // split.rows)]
    rows = list(itertools.chain(*steps))
    first, second = rows[: split.num_rows], rows[split.num_rows :]
    assert first != second[: len(first)]
    assert sorted(first) == list(range(split.num_rows))


@pytest.mark.parametrize("kind", ["text", "pairs"])
@pytest.mark.parametrize("steps", [0, 5, 40])
def test_a_resumed_iterator_goes_on_where_it_was(kind, steps, request):
    opened = request.getfixturevalue(kind)
    iterator = opened().train_batches(1)
    take(iterator, steps)
    state = iterator.get_state()
    expected = take(iterator, 8)
    resumed = opened().train_batches(1)
    take(resumed, 2)  # whatever it did before
    resumed.set_state(state)
    assert same(take(resumed, 8), expected)
    assert not same(take(resumed, 8), expected)


@pytest.mark.parametrize("kind", ["text", "pairs"])
@pytest.mark.parametrize("count", [2, 4])
def test_shares_of_processes_are_the_global_batch(kind, count, request):
    opened = request.getfixturevalue(kind)
    whole = take(opened().train_batches(2), 10)
    shares = [take(opened().train_batches(2, i, count), 10) for i in range(count)]
    joined = [
        jax.tree.map(lambda *rows: np.concatenate(rows), *each)
        for each in zip(*shares, strict=True)
    ]
    assert same(joined, whole)


def test_rows_that_do_not_divide(text):
    with pytest.raises(InputError, match=r"data\.batch_tokens = 64: batches of 4 rows .* 3"):
        text().train_batches(0, 0, 3)


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_evaluation_reads_every_item_once_in_a_fixed_order(kind, request):
    dataset = request.getfixturevalue(kind)()
    batches = dataset.eval_batches("train")
    assert same([b for _, b in batches], [b for _, b in batches])
    items = np.concatenate([items.ravel() for items, _ in batches])
    assert sorted(items[items >= 0]) == list(range(items.max() + 1))
    for indices, batch in batches:
        first = batch if kind == "text" else batch.source
        full = (indices.reshape(len(indices), -1) >= 0).any(axis=1)
        np.testing.assert_array_equal((first.segments > 0).any(1), full)
        if kind == "pairs":
            texts = dataset.texts("train")
            expected = [texts[i] for i in indices.flat if i >= 0]
            assert expected == list(pair_texts(dataset, batch))
    if kind == "pairs":
        assert len(items[items >= 0]) == len(dataset.texts("train"))


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_a_limited_evaluation_is_spread_over_the_split(kind, request):
    dataset = request.getfixturevalue(kind)()
    total = dataset._split("train").num_rows if kind == "text" else len(dataset.texts("train"))
    found = [items for items, _ in dataset.eval_batches("train", max_items=12)]
    again = [items for items, _ in dataset.eval_batches("train", max_items=12)]
    assert all(map(np.array_equal, found, again))
    items = np.concatenate([each.ravel() for each in found])
    items = np.sort(items[items >= 0])
    assert len(set(items)) == len(items) == 12
    assert items[-1] > total / 2
    assert items[0] < total / 2
    everything = dataset.eval_batches("train", max_items=10**9)
    assert sum((items >= 0).sum() for items, _ in everything) == total


def test_pairs_that_are_too_long_are_left_out_and_counted(pairs):
    dataset = pairs(length=16, batch_tokens=128)
    fitting = [p for p in dataset.texts("train") if len(p[0]) + 2 <= 16]
    assert 0 < dataset.left_out == len(dataset.texts("train")) - len(fitting)
    batches = dataset.eval_batches("train")
    assert sorted(t for _, b in batches for t in pair_texts(dataset, b)) == sorted(fitting)
    assert dataset.num_left_out("validation") >= 0
    for batch in take(dataset.train_batches(0), 10):
        assert max(batch.source.ids.shape[1], batch.target.ids.shape[1]) <= 16


def test_the_longest_pair_just_fits(make_config, write):
    source, target = write("a", ["abc", "abcd"]), write("b", ["xy", "xyz"])
    files = {"train_files": f"{source},{target}", "validation_files": f"{source},{target}"}
    dataset = open_dataset(make_config(name="parallel_files", length=4, **files))
    assert dataset.left_out == 1
    with pytest.raises(
        InputError, match=r"data\.length = 3: all 2 pairs of the train split are longer"
    ):
        open_dataset(make_config(name="parallel_files", length=3, **files))


def test_a_corpus_smaller_than_a_batch(make_config, write):
    files = {"train_files": write("a", ["abc"]), "validation_files": write("b", ["abd"])}
    dataset = open_dataset(make_config(name="text_files", length=8, batch_tokens=64, **files))
    batch = next(dataset.train_batches(0))
    assert batch.ids.shape == (8, 8)
    assert list(documents(dataset, batch)) == ["abc"] * 8
    ((items, rows),) = dataset.eval_batches("validation")
    assert items.tolist() == [0] + [-1] * 7
    assert list(documents(dataset, rows)) == ["abd"]


@pytest.mark.parametrize("kind", ["text", "pairs"])
@pytest.mark.parametrize("tokenizer", ["byte", "char"])
def test_padding_is_known_by_the_tokenizer(kind, tokenizer, request):
    dataset = request.getfixturevalue(kind)(tokenizer=tokenizer)
    assert (dataset.tokenizer.specials.pad == 0) is (tokenizer == "char")
    for _, batch in dataset.eval_batches("validation"):
        for side in (batch,) if kind == "text" else (batch.source, batch.target):
            check_fields(side, dataset.tokenizer.specials.pad)


@pytest.mark.parametrize("tokenizer", ["char", "whitespace", "sentencepiece"])
def test_the_tokenizer_never_sees_the_validation_split(make_config, write, tokenizer):
    lines = [sentence(i) for i in range(40)] * 4
    train, planted = write("a", lines), write("v", ["qqqq"] * 40)
    fields = {"name": "text_files", "tokenizer": tokenizer, "vocab_size": 30}
    dataset = open_dataset(make_config(train_files=train, validation_files=planted, **fields))
    pieces = {dataset.tokenizer.piece(i) for i in range(dataset.tokenizer.vocab_size)}
    assert not any("q" in piece for piece in pieces)
    assert dataset.tokenizer.specials.unk in dataset.ids("validation").flat
    # The control: from the training split it is learned.
    both = write("a", lines + ["qqqq"] * 40)
    dataset = open_dataset(make_config(train_files=both, validation_files=planted, **fields))
    assert any("q" in dataset.tokenizer.piece(i) for i in range(dataset.tokenizer.vocab_size))


def test_a_given_tokenizer_is_used(text):
    given = WhitespaceTokenizer.train(["one two"], 20)
    dataset = text(given)
    assert dataset.tokenizer is given
    assert dataset.fingerprint != text().fingerprint
    assert dataset.ids("train").flat.max() < given.vocab_size


def test_the_tokenizer_is_trained_once_and_texts_encoded_once(text, monkeypatch):
    first = text(tokenizer="char")
    before = first.ids("train").flat[:]
    monkeypatch.setattr("attn_jax.data.pipeline.train_tokenizer", None)
    monkeypatch.setattr("attn_jax.data.tokenizers.CharTokenizer.encode", None)
    second = text(tokenizer="char", length=32)
    assert second.fingerprint == first.fingerprint
    np.testing.assert_array_equal(second.ids("train").flat, before)


def test_fingerprints_tell_data_apart(text, pairs):
    prints = {text().fingerprint, pairs().fingerprint, text(tokenizer="char").fingerprint}
    prints.add(text(document="file").fingerprint)
    assert len(prints) == 4
    assert text(length=32).fingerprint == text().fingerprint


def test_ids_are_the_encoded_texts(text, pairs):
    dataset = text()
    column = dataset.ids("test")
    assert [dataset.tokenizer.decode(column.ids(i)) for i in range(len(column))] == list(
        dataset.texts("test")
    )
    targets = pairs()
    assert targets.tokenizer.decode(targets.ids("train").ids(0)) == targets.texts("train")[0][1]


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_grain_checkpoints_the_iterator(kind, request, tmp_path):
    import grain
    import orbax.checkpoint as ocp

    opened = request.getfixturevalue(kind)
    iterator = opened().train_batches(0)
    take(iterator, 7)
    with ocp.CheckpointManager(tmp_path / "ckpt") as manager:
        manager.save(7, args=ocp.args.Composite(data=grain.checkpoint.CheckpointSave(iterator)))
        manager.wait_until_finished()
        expected = take(iterator, 3)
        fresh = opened().train_batches(0)
        restore = grain.checkpoint.CheckpointRestore(fresh)
        manager.restore(7, args=ocp.args.Composite(data=restore))
    assert same(take(fresh, 3), expected)
