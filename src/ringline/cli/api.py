"""`ringline api`: a server with OpenAI's API, over a ring."""

from __future__ import annotations

from typing import Annotated

import typer

from ringline.cli.ring_options import (
    BatchSize,
    Device,
    GpuLayers,
    Groups,
    HubRepo,
    LocalStages,
    ModelFile,
    Nodes,
    TensorSplit,
    Threads,
    check_nodes,
    shares,
)
from ringline.cli.talk import say
from ringline.cli.tls_options import TlsCa, TlsCert, TlsKey
from ringline.engine.embedding import DEFAULT_EMBEDDING_TOKENS, EmbeddingOptions
from ringline.engine.engine import DEFAULT_PARALLEL
from ringline.engine.models import resolve_model
from ringline.engine.placement import PIPELINE_UBATCH
from ringline.engine.plan import parse_list
from ringline.engine.process.messages import EngineSpec
from ringline.engine.ring_model import DEFAULT_BATCH, DEFAULT_CONTEXT, DEFAULT_UBATCH
from ringline.errors import CallerError, LibraryError
from ringline.llama.pooling import Pooling
from ringline.net.endpoint import parse_endpoints
from ringline.net.tls import PLAIN, TlsFiles
from ringline.settings import api_keys

app = typer.Typer(add_completion=False)

#: requests that wait for a slot; more are told to come again.
_QUEUE = 64


@app.command()
def api(
    model: ModelFile = None,
    hf: HubRepo = None,
    rpc: Nodes = "",
    local_stages: LocalStages = 0,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = 8080,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            help="Each request has to bring it; may be given many times. Other users of this "
            "machine can see it: the variable RINGLINE_API_KEY is safer.",
        ),
    ] = None,
    cors_origins: Annotated[
        str,
        typer.Option(
            "--cors-origins",
            metavar="ORIGINS",
            show_default="none",
            help="Pages that may use the server, separated by commas: origins such as "
            "https://chat.example, localhost for all pages of this machine, or * for all.",
        ),
    ] = "",
    alias: Annotated[
        str,
        typer.Option("-a", "--alias", show_default="its file's", help="The model's name."),
    ] = "",
    device: Device = "",
    tensor_split: TensorSplit = "",
    n_gpu_layers: GpuLayers = -1,
    ctx_size: Annotated[
        int,
        typer.Option(
            "-c",
            "--ctx-size",
            help="Context in tokens of all requests together; 0: for each the model's own.",
        ),
    ] = DEFAULT_CONTEXT,
    parallel: Annotated[
        int,
        typer.Option("--parallel", min=1, help="Requests at once; each has an equal part of -c."),
    ] = DEFAULT_PARALLEL,
    groups: Groups = None,
    queue: Annotated[
        int, typer.Option("--queue", min=0, help="Requests that wait; more are answered 503.")
    ] = _QUEUE,
    batch_size: BatchSize = DEFAULT_BATCH,
    ubatch_size: Annotated[
        int | None,
        typer.Option(
            "-ub",
            "--ubatch-size",
            min=1,
            show_default=f"{DEFAULT_UBATCH}; over several stages {PIPELINE_UBATCH}",
            help="Most tokens in one piece of it.",
        ),
    ] = None,
    threads: Threads = None,
    repack: Annotated[
        bool,
        typer.Option("--repack/--no-repack", help="Whether the local CPU may re-order weights."),
    ] = True,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings",
            "--embedding",
            help="Also make a context for /v1/embeddings, which takes memory of its own on every "
            "stage; encoder models (BERT) have it without being asked.",
        ),
    ] = False,
    embedding_tokens: Annotated[
        int,
        typer.Option(
            "--embedding-tokens",
            min=1,
            help="Most tokens of one text to embed. Implies --embeddings.",
        ),
    ] = DEFAULT_EMBEDDING_TOKENS,
    pooling: Annotated[
        Pooling | None,
        typer.Option(
            "--pooling",
            show_default="the model's own, else mean",
            help="How the vectors of a text's tokens become one. Implies --embeddings.",
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            min=0,
            metavar="SECONDS",
            help="How long requests under way may take when the server is asked to end.",
        ),
    ] = 30.0,
    hang_timeout: Annotated[
        float,
        typer.Option(
            "--hang-timeout",
            min=0.5,
            metavar="SECONDS",
            help="Start an engine again that has not answered for so long.",
        ),
    ] = 30.0,
) -> None:
    """Serve a model over HTTP, with OpenAI's API.

    Prints one line that begins with "ringline: api ready on" when one token has been through all
    stages. SIGTERM and Ctrl-C end it when the requests under way are finished. Exit code 0 after
    that, 1 for an address, a model or a library that cannot be used.
    """
    nodes, devices = _nodes(rpc, local_stages), tuple(parse_list(device))
    try:
        from ringline.api.options import ApiOptions
        from ringline.api.origins import Origins
        from ringline.api.run import run
    except ModuleNotFoundError as error:
        raise LibraryError(f"the server needs {error.name}: pip install 'ringline[api]'") from None

    spec = EngineSpec(
        model=str(resolve_model(model, hf)),
        nodes=nodes,
        local_stages=local_stages,
        tls=TlsFiles.chosen(tls_cert, tls_key, tls_ca) if rpc else PLAIN,
        devices=devices,
        tensor_split=_shares(tensor_split, bool(nodes or local_stages)),
        n_gpu_layers=n_gpu_layers,
        n_threads=threads,
        repack=repack,
        parallel=parallel,
        groups=groups,
        n_ctx=ctx_size,
        n_batch=batch_size,
        n_ubatch=ubatch_size,
        queue=queue,
        embeddings=(
            EmbeddingOptions(pooling, embedding_tokens)
            if embeddings or pooling or embedding_tokens != DEFAULT_EMBEDDING_TOKENS
            else None
        ),
    )
    if "" in (api_key or ()):
        raise CallerError("--api-key is empty: everybody would have it")
    options = ApiOptions(
        spec=spec,
        host=host,
        port=port,
        api_keys=tuple(api_key or api_keys()),
        origins=Origins.parse(cors_origins),
        alias=alias,
        grace=grace,
        hang=hang_timeout,
    )
    run(options, say)


def _nodes(rpc: str, local_stages: int) -> tuple[str, ...]:
    check_nodes(rpc, local_stages)
    return tuple(str(endpoint) for endpoint in parse_endpoints(rpc))


def _shares(text: str, some_devices: bool) -> tuple[float, ...]:
    """What -ts gives; only the engine knows how many devices the nodes have."""
    return tuple(shares(text, len(parse_list(text)) if some_devices else 0))
