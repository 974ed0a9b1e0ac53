"""Where a model comes from: a GGUF file here (`-m`), or a repository on the Hugging Face hub.

A repository is named as llama.cpp names it, `-hf USER/MODEL[:QUANT]`. Files go to the hub's own
cache, shared with other programs; huggingface_hub reads HF_ENDPOINT, HF_HOME, HF_TOKEN and
HF_HUB_OFFLINE, continues broken downloads and shows progress on stderr.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ringline.errors import CallerError, NetworkError
from ringline.llama.gguf_file import check_model_file, shard_paths
from ringline.settings import CONNECT_TIMEOUT

__all__ = ["HubModel", "choose_files", "resolve_model"]

#: llama.cpp's choice where none is named (common/download.cpp, find_best_model).
DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
#: parts of names of GGUF files that are no model of their own (gguf_filename_is_model there).
_SIDECARS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_REPO = re.compile(r"\w[\w.-]*/\w[\w.-]*")
#: most file names in one error message.
_MOST_LISTED = 20


def resolve_model(path: str | None, hf: str | None) -> Path:
    """Return the file to load: the one named, or the first shard of the one that was fetched.

    Args:
        path: a GGUF file (`-m`).
        hf: `USER/MODEL[:QUANT]` (`-hf`).

    Raises:
        CallerError: both or none are given; the file or one of its shards is missing or is no GGUF
            file; the repository is unknown, gated, or holds no such model.
        NetworkError: the hub cannot be reached, and the model is not in its cache.
    """
    if path is not None and hf is not None:
        raise CallerError("two models are named: give -m FILE or -hf REPO[:QUANT], not both")
    if path is not None:
        file = Path(path).expanduser()
    elif hf is not None:
        file = _fetch(HubModel.parse(hf))
    else:
        raise CallerError("no model is named: give -m FILE or -hf REPO[:QUANT]")
    check_model_file(file)
    return file


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub: repository `user/name`, and a quantisation such as `Q8_0`, or None."""

    repo: str
    quant: str | None

    def __str__(self) -> str:
        """The text that parse() reads."""
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"

    @classmethod
    def parse(cls, text: str) -> HubModel:
        """Read `USER/MODEL[:QUANT]`.

        Raises:
            CallerError: the text is something else.
        """
        repo, colon, quant = text.strip().partition(":")
        if not _REPO.fullmatch(repo) or (colon and not re.fullmatch(r"[\w.-]+", quant)):
            raise CallerError(f"{text!r} is no model on the hub: write USER/MODEL[:QUANT]")
        return cls(repo, quant or None)


def choose_files(model: HubModel, names: Sequence[str]) -> list[str]:
    """Choose a model's file among a repository's, or all its shards with the first one first.

    Args:
        model: what is wanted.
        names: paths in the repository.

    Raises:
        CallerError: there is none, or not all of its shards; says which there are.
    """
    models = [name for name in sorted(names) if _is_model(name)]
    firsts = [name for name in models if _is_first(name)]
    wanted = DEFAULT_QUANTS if model.quant is None else (model.quant,)
    matches = [name for quant in wanted for name in firsts if _has_quant(name, quant)]
    if not matches and model.quant is None:
        matches = firsts
    if not matches:
        raise CallerError(_nothing_found(model, models))
    shards = [str(path) for path in shard_paths(Path(matches[0]))]
    missing = [name for name in shards if name not in models]
    if missing:
        raise CallerError(f"the repository {model.repo} lacks a shard of the model: {missing[0]}")
    return shards


def _is_model(name: str) -> bool:
    file = PurePosixPath(name).name
    return file.endswith(".gguf") and not any(part in file for part in _SIDECARS)


def _is_first(name: str) -> bool:
    try:
        shard_paths(Path(name))
    except CallerError:
        return False
    return True


def _has_quant(name: str, quant: str) -> bool:
    # As llama.cpp: anywhere in the path, so that a folder may carry the name too.
    return re.search(re.escape(quant) + "[.-]", name, re.IGNORECASE) is not None


def _nothing_found(model: HubModel, models: Sequence[str]) -> str:
    if not models:
        return f"the repository {model.repo} holds no GGUF model"
    more = f" and {len(models) - _MOST_LISTED} more" if len(models) > _MOST_LISTED else ""
    listed = ", ".join(models[:_MOST_LISTED])
    return f"the repository {model.repo} holds no model {model.quant}; it has {listed}{more}"


def _fetch(model: HubModel) -> Path:
    """Download what is not in the cache yet, and return the first file."""
    # Imported here: it takes a third of a second, and most runs name a file.
    from huggingface_hub import hf_hub_download

    try:
        names = choose_files(model, _list_files(model.repo))
    except NetworkError:
        cached = _from_cache(model)
        if cached is None:
            raise
        return cached
    files = []
    for name in names:
        with _hub_errors(model.repo):
            files.append(Path(hf_hub_download(model.repo, name)))
    if len({file.parent for file in files}) > 1:
        raise CallerError(f"the repository {model.repo} changed while it was fetched: try again")
    return files[0]


def _list_files(repo: str) -> list[str]:
    from huggingface_hub import HfApi

    # Not list_repo_files: that one tries again for half a minute where there is no network.
    with _hub_errors(repo):
        siblings = HfApi().model_info(repo, timeout=CONNECT_TIMEOUT).siblings
    return [file.rfilename for file in siblings or ()]


def _from_cache(model: HubModel) -> Path | None:
    """Return the first file of a model that an earlier run fetched; None: the cache has no such.

    Raises:
        CallerError: the cache holds files of the repository, but not the model that is wanted.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model.repo, local_files_only=True))
    except LocalEntryNotFoundError as error:
        # An incomplete snapshot will do: it may hold the one file that is wanted.
        incomplete = getattr(error, "snapshot_path", None)
        if incomplete is None:
            return None
        folder = Path(incomplete)
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")]
    return folder / choose_files(model, names)[0]


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub and its HTTP client into ours, in one sentence."""
    from huggingface_hub import errors
    from huggingface_hub.constants import ENDPOINT

    try:
        yield
    except errors.GatedRepoError as error:
        raise CallerError(
            f"the repository {repo} is gated: ask for access at {ENDPOINT}/{repo} and set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CallerError(
            f"there is no repository {repo} on {ENDPOINT}, or it is private and HF_TOKEN is not set"
        ) from error
    except errors.HFValidationError as error:
        raise CallerError(f"{repo!r} is no name of a repository: {_reason(error)}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise NetworkError(f"{ENDPOINT} answers {status} for {repo}", peer="") from error
    except Exception as error:
        # The client's own exceptions pass through huggingface_hub as they are, and its parallel
        # downloader (xet) adds more kinds: whatever else comes out of it, the download failed.
        raise NetworkError(
            f"{repo} cannot be fetched from {ENDPOINT}: {_reason(error)}", peer=""
        ) from error


def _reason(error: BaseException) -> str:
    """The innermost cause that has a text; the outer ones are advice of several lines."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    texts = [" ".join(str(link).split()) for link in chain]
    return next((text for text in reversed(texts) if text), type(error).__name__)
