"""Small text files, and one data directory that prepared sources share."""

import pytest

from attn_jax.config import Config


@pytest.fixture(scope="session")
def shared_dir(tmp_path_factory):
    """A TFDS directory for what is slow to prepare."""
    return str(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def write(tmp_path):
    """Returns a function that writes a file of given lines, or bytes, and returns its path."""

    def write_file(name, content):
        path = tmp_path / name
        if not isinstance(content, bytes):
            content = "".join(f"{line}\n" for line in content).encode()
        path.write_bytes(content)
        return str(path)

    return write_file


@pytest.fixture
def make_config(tmp_path):
    """Returns a function that makes a config on `tmp_path` with dotted fields set."""

    def make(**fields):
        config = Config()
        config.data.data_dir = str(tmp_path / "tfds")
        config.tokenizer.name = "byte"
        config.data.length, config.data.batch_tokens = 16, 64
        for name, value in fields.items():
            section = config.tokenizer if name in ("vocab_size", "tokenizer") else config.data
            setattr(section, "name" if name == "tokenizer" else name, value)
        return config

    return make
